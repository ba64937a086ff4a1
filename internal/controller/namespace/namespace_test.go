package namespace

import (
	"context"
	"errors"
	"sync"
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

// TestConflictsOnDeletionsAreToldAndRetried: a webhook that refuses deletions by a conflict was taken for
// another object of the name, and asked twice a second.
func TestConflictsOnDeletionsAreToldAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "a", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{"x"}},
			Spec:       v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}},
		})
		verbs := metav1.Verbs{"delete", "list"}
		client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Namespaced: true, Kind: "ConfigMap", Verbs: verbs},
			{Name: "pods", Namespaced: true, Kind: "Pod", Verbs: verbs},
		}}}
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		content := metadatafake.NewSimpleMetadataClient(scheme, configMap("kept"), configMap("other"))
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
		defer func() { cancel(); running.Wait(); f.Shutdown() }()

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

func configMap(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
	}
}
