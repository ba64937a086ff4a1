package controller_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/rootca"
)

// TestTheServersAuthorityIsATrustBundle: with a name that tells which authority it is, as upstream's since 1.37. What is
// changed comes back, and the bundle of an authority before this one goes.
func TestTheServersAuthorityIsATrustBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bundle := func(name, signer string) *certificatesv1.ClusterTrustBundle {
			return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: "old"}}
		}
		const signer, name = "kubernetes.io/kube-apiserver-serving", "kubernetes.io:kube-apiserver-serving:2c26b46b68ffc68ff99b453c" // of "foo"
		client, stop := run(t, func(c *fake.Clientset, _ informers.SharedInformerFactory) (controller.Controller, error) {
			return rootca.NewPublisher(c, c, []byte("foo"))
		}, bundle("kubernetes.io:kube-apiserver-serving:before", signer))
		defer stop()
		api := client.CertificatesV1().ClusterTrustBundles()
		want := func() {
			t.Helper()
			synctest.Wait()
			list, err := api.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, b := range list.Items {
				got[b.Name] = b.Spec.SignerName + " " + b.Spec.TrustBundle
			}
			if len(got) != 1 || got[name] != signer+" foo" {
				t.Errorf("bundles %q", slices.Sorted(maps.Keys(got)))
			}
		}
		want()
		b, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b = b.DeepCopy()
		b.Spec.TrustBundle = "other"
		if _, err := api.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want()
		if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want()
	})
}
