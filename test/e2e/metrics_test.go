package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prints waits until kubectl succeeds and prints a match of the pattern.
func (c *cluster) prints(pattern string, args ...string) {
	c.t.Helper()
	want := regexp.MustCompile(pattern)
	c.until(fmt.Sprintf("kubectl %s prints %s", strings.Join(args, " "), pattern), func() bool {
		out, err := c.try(append([]string{"kubectl"}, args...)...)
		return err == nil && want.MatchString(out)
	})
}

// TestTop: on a fresh node with nothing installed, kubectl top tells what is used.
func TestTop(t *testing.T) {
	c := startCluster(t)
	if out := c.kubectl("top", "nodes"); !regexp.MustCompile(`(?s)^NAME +CPU\(cores\) +CPU\(%\) +MEMORY\(bytes\) +MEMORY\(%\)\s+n\d+ +\d+m +\d+% +\d+Mi +\d+%\s*$`).MatchString(out) {
		t.Errorf("the first answer: %s", out)
	}
	c.create(busybox("busy", script(`trap 'exit 0' TERM; while :; do :; done`), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("200m")}
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "idle", Image: p.Spec.Containers[0].Image, Command: []string{"sh", "-c", loop}})
	}))
	c.await("busy", "ready", ready)
	// It is busy, so it has most of what it may have, and not much more.
	c.prints(`(?s)^POD +NAME +CPU\(cores\) +MEMORY\(bytes\)\s+busy +idle +\dm +\d+Mi\s+busy +main +(1[0-9]{2}|2[0-4][0-9])m +\d+Mi\s*$`, "top", "pod", "--containers")
	c.prints(`(?s)^NAME +CPU\(cores\) +MEMORY\(bytes\)\s+busy +(1[0-9]{2}|2[0-4][0-9])m`, "top", "pod", "busy")
	c.prints(`(?s)^NAME +CPU +MEMORY +WINDOW\s+busy +\d+n +\d+\S* +\S+s`, "get", "podmetrics")
	c.delete("busy")
	if _, err := c.try("kubectl", "top", "pod", "busy"); err == nil || !strings.Contains(err.Error(), `pods "busy" not found`) {
		t.Errorf("a pod that is gone: %v", err)
	}
}

// TestAutoscaler: examples/hpa.yaml on a fresh node scales under load, and back.
func TestAutoscaler(t *testing.T) {
	c := startCluster(t)
	example, err := filepath.Abs("../../examples/hpa.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl("apply", "-f", example)
	if got := c.sized("busy", func(n int32) bool { return n >= 2 }); got.Status.CurrentMetrics[0].Resource.Current.AverageUtilization == nil {
		t.Errorf("%+v", got.Status)
	}
	c.kubectl("set", "env", "deployment/busy", "LOAD=off")
	c.sized("busy", func(n int32) bool { return n == 1 })
	c.kubectl("wait", "deployment/busy", "--for", "jsonpath={.status.readyReplicas}=1", "--timeout", fmt.Sprint(patience))
}

// sized waits until an autoscaler has given its target a size.
func (c *cluster) sized(name string, ok func(n int32) bool) (got *autoscalingv2.HorizontalPodAutoscaler) {
	c.t.Helper()
	c.until("the autoscaler has scaled", func() bool {
		var err error
		got, err = c.client.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceDefault).Get(c.t.Context(), name, metav1.GetOptions{})
		return err == nil && len(got.Status.CurrentMetrics) > 0 && ok(got.Status.DesiredReplicas)
	})
	return got
}
