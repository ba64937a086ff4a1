package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamespaceGoesOnlyOnceFinalized(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	api := admin(t, s).CoreV1().Namespaces()
	if _, err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := api.Get(ctx, "n", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil {
		t.Fatalf("deleted namespace: %v %+v", err, ns)
	}
	ns.Spec.Finalizers = nil
	if _, err := api.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := api.Get(ctx, "n", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after finalize: %v", err)
	}
}

func TestEventsAreTheSameInBothGroups(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, EventTime: metav1.NowMicro(),
		ReportingController: "test", ReportingInstance: "test-1", Action: "Testing", Reason: "Tested", Type: "Normal",
		Note: "hello", Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"},
	}
	if _, err := c.EventsV1().Events("default").Create(ctx, e, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := c.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Tested"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Message != "hello" || list.Items[0].InvolvedObject.Kind != "Pod" {
		t.Fatalf("as core/v1: %v %+v", err, list)
	}
	newer, err := c.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=p"})
	if err != nil || len(newer.Items) != 1 || newer.Items[0].Note != "hello" {
		t.Fatalf("as events.k8s.io/v1: %v %+v", err, newer)
	}
}
