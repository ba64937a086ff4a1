package cache

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/scheduler/framework"
)

// BenchmarkImages: what it costs that nodes have images, 50 of 400 each, with two names: when a pod comes and goes,
// when a node reports a status in which nothing has changed, and when it has another image.
func BenchmarkImages(b *testing.B) {
	for _, images := range []int{0, 50} {
		c, s := New(klog.Background()), NewSnapshot(nil)
		nodes := make([]*v1.Node, 5000)
		for i := range nodes {
			nodes[i] = withImages(i, images)
			c.SetNode(nodes[i])
		}
		c.Update(s)
		b.Run(fmt.Sprint("pod/images=", images), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID(fmt.Sprint(i))}}
				info, err := framework.NewPodInfo(p)
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Assume(info, nodes[i%len(nodes)].Name); err != nil {
					b.Fatal(err)
				}
				c.Update(s)
				c.Forget(p.UID)
				c.Update(s)
			}
		})
		b.Run(fmt.Sprint("status/images=", images), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.SetNode(nodes[i%len(nodes)].DeepCopy())
				c.Update(s)
			}
		})
		b.Run(fmt.Sprint("pull/images=", images), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.SetNode(withImages(i%len(nodes), images+i/len(nodes)%2))
				c.Update(s)
			}
		})
	}
}

func withImages(i, images int) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n-", i)}}
	for j := range images {
		name := fmt.Sprintf("registry.example.com/team/application-%d", (i*7+j)%400)
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{name + ":v1", name + "@sha256:0123456789abcdef"}, SizeBytes: 7})
	}
	return n
}
