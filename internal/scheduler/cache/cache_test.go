package cache

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/scheduler/framework"
)

// TestEveryNodeKnowsHowManyHaveAnImage: the first node counted the image once, and only the last one as often as it is.
func TestEveryNodeKnowsHowManyHaveAnImage(t *testing.T) {
	c, s := New(klog.Background()), NewSnapshot(nil)
	for i := range 3 {
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n-", i)},
			Status:     v1.NodeStatus{Images: []v1.ContainerImage{{Names: []string{"web:1"}, SizeBytes: 7}}},
		})
	}
	c.Update(s)
	for _, n := range s.Nodes() {
		if got := *n.GetImageStates()["web:1"]; got.NumNodes != 3 || got.Size != 7 {
			t.Errorf("%s: %d nodes have the image of %d bytes, want 3 and 7", n.Node().Name, got.NumNodes, got.Size)
		}
	}
}

// TestImagesComeAndGo: what nodes have is counted as it changes, also over a node that goes and comes again.
func TestImagesComeAndGo(t *testing.T) {
	c, s := New(klog.Background()), NewSnapshot(nil)
	has := func(name string, images ...string) {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, image := range images {
			n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{image}, SizeBytes: 7})
		}
		c.SetNode(n)
	}
	want := func(node, image string, nodes int) {
		t.Helper()
		c.Update(s)
		n, err := s.Get(node)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if state := n.GetImageStates()[image]; state != nil {
			got = state.NumNodes
		}
		if got != nodes {
			t.Errorf("%s: %d nodes have %s, want %d", node, got, image, nodes)
		}
	}
	has("a", "web:1")
	has("b", "web:1", "web:2")
	want("b", "web:1", 2)
	want("b", "web:2", 1)
	has("a", "web:2")
	want("a", "web:2", 2)
	want("a", "web:1", 0)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: v1.PodSpec{NodeName: "b"}}
	if err := c.SetPod(pod); err != nil {
		t.Fatal(err)
	}
	want("b", "web:1", 1) // counted because the pod came, not an image
	c.RemoveNode("b")     // of which the pod is left
	has("a", "web:2", "web:3")
	want("a", "web:2", 1)
	has("b", "web:2")
	want("b", "web:2", 2)
	want("b", "web:1", 0)
}

// TestWhatIsTaken: less important pods could be preempted, and what is assumed may yet fail to be bound.
func TestWhatIsTaken(t *testing.T) {
	c := New(klog.Background())
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	for name, priority := range map[string]int32{"low": 1, "high": 5, "higher": 9} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: "n", Priority: &priority}}
		p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}
		if name != "higher" {
			if err := c.SetPod(p); err != nil {
				t.Fatal(err)
			}
			continue
		}
		info, err := framework.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Assume(info, "n"); err != nil {
			t.Fatal(err)
		}
	}
	for priority, want := range map[int32]int{0: 2, 1: 2, 2: 1, 5: 1, 6: 0} {
		_, taken, pods, known := c.Taken("n", func(p *v1.Pod) bool { return framework.Priority(p) >= priority })
		if !known || pods != want || taken.GetMilliCPU() != int64(1000*want) {
			t.Errorf("priority %d: %d pods take %d, want %d", priority, pods, taken.GetMilliCPU(), want)
		}
	}
	if _, _, _, known := c.Taken("m", nil); known {
		t.Error("a node is known that does not exist")
	}
}
