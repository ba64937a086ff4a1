package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startGangScheduler builds examples/scheduler-plugin, a module of its own, and runs it beside the node's
// scheduler until the test ends.
func (c *cluster) startGangScheduler() {
	c.t.Helper()
	bin := filepath.Join(c.t.TempDir(), "gang-scheduler")
	const dir = "../../examples/scheduler-plugin"
	compile(c.t, dir, "-ldflags=-s -w", "-o", bin, ".")
	var log strings.Builder
	cmd := exec.Command(bin, "--config", filepath.Join(dir, "config.yaml"), "--kubeconfig", filepath.Join(c.data, "kubeconfig"), "--secure-port", "0")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // if it has ended by itself, Wait says why
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("the scheduler: %v\n%s", err, log.String())
		} else if c.t.Failed() {
			c.t.Log(log.String())
		}
	})
}

// TestASchedulerPluginOfOnesOwn: the pods of a gang wait for each other, at every point at which the plugin
// of examples/scheduler-plugin has a say.
func TestASchedulerPluginOfOnesOwn(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.startGangScheduler()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatal(err, len(nodes.Items))
	}
	most := nodes.Items[0].Status.Allocatable.Cpu().MilliValue()
	member := func(gang string, i, size int, cpu int64) *v1.Pod {
		return busybox(fmt.Sprintf("%s-%d", gang, i), func(p *v1.Pod) {
			p.Spec.SchedulerName = "gang-scheduler"
			p.Labels = map[string]string{"gang.example.com/name": gang}
			p.Annotations = map[string]string{"gang.example.com/size": fmt.Sprint(size)}
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)}
		})
	}
	// Two of three members are not tried at all; with the third one, all of them are bound.
	c.create(member("a", 0, 3, 10))
	c.create(member("a", 1, 3, 10))
	c.create(busybox("other", func(p *v1.Pod) { p.Spec.SchedulerName = "gang-scheduler" }))
	c.await("other", "ready", ready)
	for _, name := range []string{"a-0", "a-1"} {
		if p := c.get(name); p.Spec.NodeName != "" {
			t.Errorf("%s does not wait for its gang", name)
		}
	}
	c.create(member("a", 2, 3, 10))
	for _, name := range []string{"a-0", "a-1", "a-2"} {
		c.await(name, "ready", ready)
	}
	// One of two does not fit: the other one has a place, and gives it back.
	c.create(member("b", 0, 2, most/2))
	c.create(member("b", 1, 2, most))
	c.await("b-1", "unschedulable", unschedulable("Insufficient cpu"))
	c.await("b-0", "rejected after its time", unschedulable("rejected due to timeout"))
	if p := c.get("b-0"); p.Spec.NodeName != "" {
		t.Errorf("half of a gang is on %s", p.Spec.NodeName)
	}
	// Nodes that are spared from gangs.
	patch := func(value string) {
		t.Helper()
		c.kubectl("label", "node", nodes.Items[0].Name, "--overwrite", "gang.example.com/spare"+value)
	}
	patch("=yes")
	c.create(member("c", 0, 1, 10))
	c.await("c-0", "unschedulable", unschedulable("spared from gangs"))
	patch("-")
	c.await("c-0", "ready", ready)
}

// unschedulable reports whether a pod was told that it cannot be scheduled, for a reason.
func unschedulable(why string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		if p == nil {
			return false
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodScheduled && c.Reason == v1.PodReasonUnschedulable && strings.Contains(c.Message, why) {
				return true
			}
		}
		return false
	}
}
