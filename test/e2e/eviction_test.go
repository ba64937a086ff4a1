package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/kubelet/nodestatus"
)

// memoryNode starts a node whose pods together have little memory: what they run short of is theirs, and the
// machine's is not touched.
func memoryNode(t *testing.T, pods, least int64, flags ...string) *parts {
	t.Helper()
	c := newCluster(t)
	p := &parts{cluster: c, dir: filepath.Dir(c.data), apiPort: c.flags[3]}
	p.runtime()
	p.apiserver()
	machine, _, err := nodestatus.Capacity(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.kubelet(append([]string{
		fmt.Sprintf("--kube-reserved=memory=%d", machine-pods), fmt.Sprintf("--eviction-hard=allocatableMemory.available<%d", least),
		"--eviction-pressure-transition-period=5s",
	}, flags...)...)
	p.controllers()
	return p
}

// onNode puts a pod onto the node without a scheduler.
func onNode(p *v1.Pod) { p.Spec.NodeName = "alone" }

func (p *parts) pressed(t v1.NodeConditionType) bool {
	n, err := p.client.CoreV1().Nodes().Get(p.t.Context(), "alone", metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// A pod that uses up the memory is evicted with a reason, and alone; meanwhile the node takes no pods that
// have asked for none. It does not matter whether the pod holds the memory itself or in files.
func TestPodThatUsesUpTheMemoryIsEvictedAlone(t *testing.T) {
	needsOwnRuntime(t)
	p := memoryNode(t, 800<<20, 600<<20)
	asks := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("50Mi")}
	}
	p.create(busybox("neighbour", onNode, asks))
	neighbour := p.await("neighbour", "ready", ready)
	inFiles := onDisk("files", "dd if=/dev/zero of=/data/hog bs=1M count=300; "+loop, onNode)
	inFiles.Spec.Volumes[len(inFiles.Spec.Volumes)-1].EmptyDir.Medium = v1.StorageMediumMemory
	for _, hog := range []*v1.Pod{busybox("process", onNode, script("(head -c 250000000 /dev/zero; sleep 1000) | tail -c 250000000 > /dev/null")), inFiles} {
		p.create(hog)
		got := p.await(hog.Name, "evicted", evicted)
		m := got.Status.Message
		if !strings.HasPrefix(m, "The node was low on resource: memory. Threshold quantity: 600Mi, available: ") || !strings.Contains(m, "has larger consumption of memory. ") {
			t.Errorf("%s: %s", hog.Name, m)
		}
		p.awaitEvent(hog.Name, "Evicted")
		p.until("the node is under pressure", func() bool { return p.pressed(v1.NodeMemoryPressure) })
		p.create(busybox("refused-"+hog.Name, onNode))
		if got := p.await("refused-"+hog.Name, "refused", evicted); got.Status.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
			t.Errorf("%q", got.Status.Message)
		}
		p.create(busybox("asks-"+hog.Name, onNode, asks))
		p.await("asks-"+hog.Name, "ready", ready)
		p.until("the pressure is over", func() bool { return !p.pressed(v1.NodeMemoryPressure) })
		p.create(busybox("after-"+hog.Name, onNode))
		p.await("after-"+hog.Name, "ready", ready)
	}
	if now := p.get("neighbour"); !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the neighbour: %s", describe(now))
	}
}
