package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/hollow"
)

// startHollow runs hollow nodes beside the instance's own until the test ends, or until stop is called.
func (c *cluster) startHollow(args ...string) (stop func()) {
	c.t.Helper()
	cmd := c.command(c.t.Context(), append([]string{"hollow", "--kubeconfig", filepath.Join(c.data, "kubeconfig")}, args...)...)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM) // if it has ended by itself, Wait says why
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("wherry hollow: %v\n%s", err, log.String())
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// on returns the pods of the deployment that are on a node and are to stay there.
func (c *cluster) on(node string) (staying, leaving []v1.Pod) {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp != nil {
			leaving = append(leaving, p)
		} else {
			staying = append(staying, p)
		}
	}
	return staying, leaving
}

const crowd = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: 100
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      nodeSelector: {%s: "true"}
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]
      containers: [{name: main, image: "registry.example.com/crowd:1"}]
`

// TestHollowNodes: nodes that do not exist are drained, updated on and lost as real ones are. The
// failure comes first, because the control plane takes 50 seconds to notice it.
func TestHollowNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up()
	stop := c.startHollow("--nodes", "20", "--cleanup")
	c.kubectl("apply", "-f", c.file(fmt.Sprintf(crowd, hollow.LabelHollow)))
	c.kubectl("rollout", "status", "deployment/crowd", "--timeout", fmt.Sprint(patience))

	c.kubectl("annotate", "node", "hollow-3", hollow.AnnotationFail+"=true")
	c.kubectl("drain", "hollow-5", "--timeout", fmt.Sprint(patience))
	if staying, leaving := c.on("hollow-5"); len(staying)+len(leaving) > 0 {
		t.Errorf("%d and %d pods are left on a drained node", len(staying), len(leaving))
	}
	c.kubectl("uncordon", "hollow-5")
	c.kubectl("set", "image", "deployment/crowd", "main=registry.example.com/crowd:2")
	c.kubectl("rollout", "status", "deployment/crowd", "--timeout", fmt.Sprint(2*patience))
	c.until("pods stay on a node that failed", func() bool {
		staying, _ := c.on("hollow-3")
		return len(staying) == 0 && c.field("deployment/crowd", "{.status.readyReplicas}") == "100"
	})
	if _, leaving := c.on("hollow-3"); len(leaving) == 0 {
		t.Error("pods of a node that is silent are gone")
	}
	c.kubectl("annotate", "node", "hollow-3", hollow.AnnotationFail+"-")
	c.kubectl("wait", "node/hollow-3", "--for", "condition=Ready", "--timeout", fmt.Sprint(patience))
	c.until("the node that came back does not end its pods", func() bool {
		_, leaving := c.on("hollow-3")
		return len(leaving) == 0
	})
	stop()
	if left := c.kubectl("get", "nodes", "-l", hollow.LabelHollow, "-o", "name"); left != "" {
		t.Errorf("nodes are left: %s", left)
	}
}
