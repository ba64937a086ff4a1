package bootstrap

import (
	"errors"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWhoHoldsTheFirstAddressIsTold(t *testing.T) {
	const ip = "10.96.0.1"
	held := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "greedy"}},
	}
	o := New(Config{Client: fake.NewClientset(held), Alone: true})
	refused := apierrors.NewInvalid(networkingv1.SchemeGroupVersion.WithKind("IPAddress").GroupKind(), "x", nil)
	err := o.addressTaken(t.Context(), ip, refused)
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), "services default/greedy") || passes(err) {
		t.Error(err)
	}
}
