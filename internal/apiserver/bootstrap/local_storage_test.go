package bootstrap

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/classes"
)

// TestTheClassOfLocalVolumesIsMadeOnce: what an administrator does with it afterwards stays.
func TestTheClassOfLocalVolumesIsMadeOnce(t *testing.T) {
	client := fake.NewClientset()
	o := New(Config{Client: client, LocalStorage: true})
	start := func() {
		t.Helper()
		if err := o.ensureLocalStorage(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	api := client.StorageV1().StorageClasses()
	class, err := api.Get(t.Context(), classes.LocalStorage, metav1.GetOptions{})
	if err != nil || !classes.IsDefaultStorage(class) || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		t.Fatalf("%+v, %v", class, err)
	}
	class.Annotations = nil
	if _, err := api.Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	start()
	if class, err = api.Get(t.Context(), classes.LocalStorage, metav1.GetOptions{}); err != nil || classes.IsDefaultStorage(class) {
		t.Errorf("%+v, %v", class, err)
	}
	if err := api.Delete(t.Context(), classes.LocalStorage, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	start()
	if _, err := api.Get(t.Context(), classes.LocalStorage, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is back: %v", err)
	}
}

func TestAClusterWithADefaultClassKeepsIt(t *testing.T) {
	other := storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{classes.StorageDefault: "true"}}}
	client := fake.NewClientset(&other)
	if err := New(Config{Client: client}).ensureLocalStorage(t.Context()); err != nil {
		t.Fatal(err)
	}
	class, err := client.StorageV1().StorageClasses().Get(t.Context(), classes.LocalStorage, metav1.GetOptions{})
	if err != nil || classes.IsDefaultStorage(class) {
		t.Errorf("%+v, %v", class, err)
	}
}
