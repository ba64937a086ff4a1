package podsource

import (
	"context"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/pods"
)

// Whoever may create pods could have written into one that it comes from a file of the node: it counted as critical then, made
// others go for it, was never evicted, and its status was not reported.
func TestPodOfTheAPIIsNoStaticPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claiming := func(name string, annotations map[string]string) *v1.Pod {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: annotations}, Spec: v1.PodSpec{NodeName: "n"}}
		}
		liar := claiming("liar", map[string]string{pods.AnnotationConfigSource: "file", pods.AnnotationConfigHash: "1"})
		liar.UID = "1"
		mirror := claiming("mirror", map[string]string{pods.AnnotationConfigSource: "file", pods.AnnotationConfigMirror: "1"})
		mirror.UID = "2"
		client := fake.NewClientset(liar, mirror)
		set, gone := map[string]*v1.Pod{}, map[string]*v1.Pod{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Pods(ctx, client, "n", Events{
				Set:  func(o runtime.Object) { set[o.(*v1.Pod).Name] = o.(*v1.Pod) },
				Gone: func(o runtime.Object) { gone[o.(*v1.Pod).Name] = o.(*v1.Pod) },
			})
		}()
		synctest.Wait()
		if err := client.CoreV1().Pods("ns").Delete(ctx, "liar", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		<-done
		for what, pod := range map[string]*v1.Pod{"new": set["liar"], "deleted": gone["liar"]} {
			if pod == nil || pods.IsStatic(pod) || pods.IsCritical(pod) {
				t.Errorf("%s pod that claims to be static is taken for %+v", what, pod)
			}
		}
		if pod := set["mirror"]; pod == nil || pod.Annotations[pods.AnnotationConfigSource] != "file" {
			t.Errorf("the mirror of a static pod is %+v", pod)
		}
	})
}
