package certificates

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestOldPodRequestsAreClearedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		f := informers.NewSharedInformerFactory(client, 0)
		c, err := NewPodRequestCleaner(client, f)
		if err != nil {
			t.Fatal(err)
		}
		f.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		api := client.CertificatesV1().PodCertificateRequests("ns")
		r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.Now()}}
		if _, err := api.Create(ctx, r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(podRequestAge - time.Second)
		synctest.Wait()
		if _, err := api.Get(ctx, "r", metav1.GetOptions{}); err != nil {
			t.Errorf("before its time: %v", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := api.Get(ctx, "r", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("an old request: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	})
}
