package apiserver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// Every client that counts repetitions of an event updates it in this way, for example the
// scheduler's with each pod that fits nowhere.
func TestAnEventsSeriesIsUpdatedThroughEventsV1(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).EventsV1().Events("default")
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, EventTime: metav1.NowMicro(),
		ReportingController: "test", ReportingInstance: "test-1", Action: "Testing", Reason: "Tested", Type: "Normal",
		Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"},
	}
	e, err := api.Create(ctx, e, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	if e, err = api.Update(ctx, e, metav1.UpdateOptions{}); err != nil || e.Series == nil || e.Series.Count != 2 {
		t.Fatalf("update: %v, %+v", err, e.Series)
	}
	patch := fmt.Appendf(nil, `{"series":{"count":3,"lastObservedTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	if e, err = api.Patch(ctx, "e", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil || e.Series.Count != 3 {
		t.Fatalf("patch: %v, %+v", err, e.Series)
	}
	other := e.DeepCopy()
	other.EventTime, other.Note = metav1.NewMicroTime(e.EventTime.Add(time.Second)), "other"
	_, err = api.Update(ctx, other, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "eventTime: Invalid value") || !strings.Contains(err.Error(), "message: Invalid value") {
		t.Errorf("what is immutable was changed: %v", err)
	}
	// Clients that keep nanoseconds in memory hold the same time as what was stored in
	// microseconds.
	other = e.DeepCopy()
	other.EventTime = metav1.NewMicroTime(e.EventTime.Add(500 * time.Nanosecond))
	if _, err := api.Update(ctx, other, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a time with nanoseconds: %v", err)
	}
}
