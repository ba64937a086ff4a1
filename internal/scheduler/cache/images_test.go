package cache

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
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
