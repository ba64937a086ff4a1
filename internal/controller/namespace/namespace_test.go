package namespace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
)

// ending is an API server with a namespace that is being deleted.
func ending() *fake.Clientset {
	client := fake.NewClientset(&v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "a", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{"x"}},
		Spec:       v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}},
	})
	verbs := metav1.Verbs{"delete", "list"}
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Namespaced: true, Kind: "ConfigMap", Verbs: verbs},
		{Name: "pods", Namespaced: true, Kind: "Pod", Verbs: verbs},
	}}}
	return client
}

func contents(t *testing.T, objs ...runtime.Object) *metadatafake.FakeMetadataClient {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return metadatafake.NewSimpleMetadataClient(scheme, objs...)
}

// run runs the controller, and returns what stops it.
func run(t *testing.T, client *fake.Clientset, content *metadatafake.FakeMetadataClient) (stop func()) {
	t.Helper()
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := New(client, content, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); running.Wait(); f.Shutdown() }
}

// TestConflictsOnDeletionsAreToldAndRetried: a webhook that refuses deletions by a conflict was taken for
// another object of the name, and asked twice a second.
func TestConflictsOnDeletionsAreToldAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := ending()
		content := contents(t, configMap("kept"), configMap("other"))
		var mu sync.Mutex
		refuses, asked := true, 0
		content.PrependReactor("delete", "configmaps", func(act k8stesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked++; act.(k8stesting.DeleteAction).GetName() == "kept" && refuses {
				return true, nil, apierrors.NewConflict(act.GetResource().GroupResource(), "kept", errors.New("the webhook says so"))
			}
			return false, nil, nil
		})
		defer run(t, client, content)()

		time.Sleep(10 * time.Minute)
		mu.Lock()
		if asked < 10 || asked > 100 {
			t.Errorf("%d deletions in ten minutes", asked)
		}
		refuses = false
		mu.Unlock()
		ns, err := client.CoreV1().Namespaces().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		said := map[v1.NamespaceConditionType]string{}
		for _, c := range ns.Status.Conditions {
			said[c.Type] = string(c.Status) + " " + c.Message
		}
		if got, want := said[v1.NamespaceContentRemaining], "True Some resources are remaining: configmaps has 1 resource instances"; got != want {
			t.Errorf("remaining: %q, want %q", got, want)
		}
		if got := said[v1.NamespaceDeletionContentFailure]; got[:4] != "True" {
			t.Errorf("failure: %q", got)
		}
		time.Sleep(time.Minute)
		if ns, err = client.CoreV1().Namespaces().Get(t.Context(), "a", metav1.GetOptions{}); err != nil || len(ns.Spec.Finalizers) > 0 {
			t.Errorf("finalizers %v, %v", ns.Spec.Finalizers, err)
		}
	})
}

// TestConflictsOnTheNamespaceItselfAreRetried: a webhook refuses to let the namespace go.
func TestConflictsOnTheNamespaceItselfAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := ending()
		var refuses atomic.Bool
		refuses.Store(true)
		client.PrependReactor("*", "namespaces", func(act k8stesting.Action) (bool, runtime.Object, error) {
			if act.GetSubresource() == "" || !refuses.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(act.GetResource().GroupResource(), "a", errors.New("the webhook says so"))
		})
		content := contents(t)
		defer run(t, client, content)()
		time.Sleep(10 * time.Minute)
		if n, of := len(client.Actions()), len(content.Actions()); n < 20 || n > 150 || of > 100 {
			t.Errorf("%d requests about the namespace, %d about what is in it, in ten minutes", n, of)
		}
		refuses.Store(false)
		time.Sleep(time.Minute)
		ns, err := client.CoreV1().Namespaces().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || len(ns.Spec.Finalizers) > 0 || len(ns.Status.Conditions) == 0 {
			t.Errorf("finalizers %v, conditions %v, %v", ns.Spec.Finalizers, ns.Status.Conditions, err)
		}
	})
}

// TestPodsOfALargeNamespaceAreNotListedForEach: while thousands of pods end, one after another, what is
// left is counted now and then, not for each.
func TestPodsOfALargeNamespaceAreNotListedForEach(t *testing.T) {
	const size = 3000
	synctest.Test(t, func(t *testing.T) {
		client, content := ending(), contents(t)
		pods := v1.SchemeGroupVersion.WithResource("pods")
		for i := range size {
			name := fmt.Sprint("p", i)
			if err := client.Tracker().Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}); err != nil {
				t.Fatal(err)
			}
			if err := content.Tracker().Create(pods, podMetadata(name), "a"); err != nil {
				t.Fatal(err)
			}
		}
		defer run(t, client, content)()
		synctest.Wait()
		content.ClearActions()
		for i := range size {
			time.Sleep(10 * time.Millisecond)
			name := fmt.Sprint("p", i)
			if err := errors.Join(content.Tracker().Delete(pods, "a", name), client.Tracker().Delete(pods, "a", name)); err != nil {
				t.Fatal(err)
			}
		}
		lists := 0
		for _, act := range content.Actions() {
			if act.GetVerb() == "list" {
				lists++
			}
		}
		if lists > 20 { // two in ten seconds
			t.Errorf("the pods were listed %d times while %d of them ended in 30 s", lists, size)
		}
		time.Sleep(100 * time.Millisecond)
		ns, err := client.CoreV1().Namespaces().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || len(ns.Spec.Finalizers) > 0 {
			t.Errorf("finalizers %v, %v, when the last pod had ended", ns.Spec.Finalizers, err)
		}
	})
}

func podMetadata(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, DeletionTimestamp: new(metav1.Now())},
	}
}

func configMap(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
	}
}
