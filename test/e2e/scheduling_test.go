package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAPlainNodeSaysWhatItCannotDo, to those whom it concerns and to nobody else.
func TestAPlainNodeSaysWhatItCannotDo(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("plain"))
	c.await("plain", "ready", ready)
	claims := busybox("claims")
	claims.Spec.Volumes = append(claims.Spec.Volumes, v1.Volume{
		Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
	})
	c.create(claims)
	const want = `0/1 nodes are available: persistentvolumeclaim "data": not supported by this scheduler.`
	pod := c.await("claims", "unschedulable", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == v1.PodReasonUnschedulable
	})
	if got := pod.Status.Conditions[0].Message; got != want || pod.Spec.NodeName != "" {
		t.Errorf("on node %q: %s", pod.Spec.NodeName, got)
	}
	if out := c.must("explain", "pod/claims"); !strings.Contains(out, want) || !strings.Contains(out, "continues when: nothing that happens in the cluster") {
		t.Errorf("explain promises:\n%s", out)
	}
	events, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=plain"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		t.Errorf("a pod that lacks nothing is warned: %s: %s", e.Reason, e.Message)
	}
}
