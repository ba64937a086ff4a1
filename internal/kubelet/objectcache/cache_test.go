package objectcache

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/test/leaks"
)

var ref = Ref{ConfigMap, "ns", "c"}

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func play(t *testing.T, f func(t *testing.T, c *Cache, client *fake.Clientset, changes *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}})
		var n atomic.Int32
		c := New(client, func(types.UID) { n.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		f(t, c, client, &n)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func cm(version, value string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "x", ResourceVersion: version}, Data: map[string]string{"k": value}}
}

func TestObjectIsFollowed(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, n *atomic.Int32) {
		c.Use("pod", []Ref{ref})
		view := c.For(t.Context())
		if _, err := view.ConfigMap("ns", "c"); !apierrors.IsNotFound(err) || err.Error() != `configmap "c" not found` {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), cm("2", "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, err := view.ConfigMap("ns", "c"); err != nil || got.Data["k"] != "a" || n.Load() != 1 {
			t.Errorf("%v, %v, %d changes", got, err, n.Load())
		}
		if err := client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := view.ConfigMap("ns", "c"); !apierrors.IsNotFound(err) || n.Load() != 2 {
			t.Errorf("%v, %d changes", err, n.Load())
		}
	})
}

// The authorizer learns of a pod slightly later than we do.
func TestForbiddenAtFirst(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, _ *atomic.Int32) {
		tries := 0
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			if tries < 4 {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "c", errors.New("no relationship"))
			}
			return true, &v1.ConfigMapList{Items: []v1.ConfigMap{*cm("1", "a")}}, nil
		})
		began := time.Now()
		c.Use("pod", []Ref{ref})
		if got, err := c.For(t.Context()).ConfigMap("ns", "c"); err != nil || got.Data["k"] != "a" || time.Since(began) > 200*time.Millisecond {
			t.Errorf("%v, %v, after %v", got, err, time.Since(began))
		}
	})
}

func TestForbiddenForGood(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, _ *atomic.Int32) {
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "c", errors.New("no"))
		})
		c.Use("pod", []Ref{ref})
		if _, err := c.For(t.Context()).ConfigMap("ns", "c"); !apierrors.IsForbidden(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestClaimsThatMayNotBeWatched are asked for one by one: upstream's API server lets a node do no more. They wake their
// pods all the same.
func TestClaimsThatMayNotBeWatched(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, n *atomic.Int32) {
		client.PrependReactor("list", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(v1.Resource("persistentvolumeclaims"), "c", errors.New("can only get individual resources of this type"))
		})
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			{Name: "a", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
			{Name: "b", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		}}}
		refs := Refs(pod)
		if len(refs) != 2 || refs[0] != (Ref{Claim, "ns", "c"}) || refs[1] != (Ref{Claim, "ns", "p-b"}) {
			t.Errorf("refs %v", refs)
		}
		c.Use("pod", refs)
		view := c.For(t.Context())
		if _, err := view.Claim("ns", "c"); !apierrors.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
		if _, err := client.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got, err := view.Claim("ns", "c"); err != nil || got.Name != "c" || n.Load() != 1 {
			t.Errorf("%v, %v, %d changes", got, err, n.Load())
		}
	})
}

func TestWatchLingersAndEnds(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, _ *atomic.Int32) {
		lists := func() (n int) {
			for _, a := range client.Actions() {
				if a.GetVerb() == "list" {
					n++
				}
			}
			return n
		}
		c.Use("a", []Ref{ref})
		synctest.Wait()
		c.Use("a", nil)
		time.Sleep(linger / 2)
		c.Use("b", []Ref{ref})
		synctest.Wait()
		if lists() != 1 {
			t.Errorf("%d lists: the watch did not linger", lists())
		}
		c.Use("b", nil)
		time.Sleep(linger + time.Second)
		synctest.Wait()
		c.mu.Lock()
		left := len(c.entries)
		c.mu.Unlock()
		if left != 0 {
			t.Error("the watch goes on for nobody")
		}
	})
}

// TestTrustBundlesAreFollowed as a whole, once a pod uses any.
func TestTrustBundlesAreFollowed(t *testing.T) {
	play(t, func(t *testing.T, c *Cache, client *fake.Clientset, n *atomic.Int32) {
		pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
			Sources: []v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}, {ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}}},
		}}}}}}
		refs := Refs(pod)
		if len(refs) != 1 {
			t.Errorf("refs %v", refs)
		}
		c.Use("pod", refs)
		if got, err := c.For(t.Context()).TrustBundles(); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
		b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		if _, err := client.CertificatesV1().ClusterTrustBundles().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, err := c.For(t.Context()).TrustBundles(); err != nil || len(got) != 1 || n.Load() != 1 {
			t.Errorf("%v, %v, %d changes", got, err, n.Load())
		}
	})
}
