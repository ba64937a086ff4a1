package podworker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"wherry.dev/internal/kubelet/podplan"
)

func named(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
}

func emptyTable(t *testing.T) *Table {
	t.Helper()
	records, err := OpenRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return NewTable(NewPods(), Deps{
		Records: records, Node: func() podplan.Node { return podplan.Node{} }, Admission: welcome{},
	})
}

// A static pod that was replaced while the kubelet was down is known only as an orphan. The new pod
// used to be started beside it.
func TestAStaticPodWaitsForAnOrphanOfItsName(t *testing.T) {
	table := emptyTable(t)
	table.Adopt(named("old"))
	table.Set(named("new"), true)
	if table.waiting["new"] != "old" {
		t.Errorf("waiting: %v", table.waiting)
	}
	table.Set(named("old"), false) // it belongs to somebody else
	if len(table.waiting) > 0 {
		t.Errorf("still waiting: %v", table.waiting)
	}
}

// A pod whose removal the source reported after its worker had last looked used to be remembered
// for ever as one whose removal is still to come.
func TestRemovalThatWasToldIsNotWaitedFor(t *testing.T) {
	for told, want := range map[bool]int{true: 0, false: 1} {
		table := emptyTable(t)
		table.Set(named("u"), false)
		w := table.get("u")
		w.put(&Snapshot{Pod: named("u"), Plan: podplan.Plan{Done: true}})
		if told {
			table.Remove("u", nil)
		}
		table.ended(w)
		if got := len(table.forgotten); got != want {
			t.Errorf("told %v: %d are remembered", told, got)
		}
	}
}

// broken is a runtime that cannot be asked.
type broken struct{ Runtime }

func (broken) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return nil, errors.New("broken")
}

// What a worker logged named its pod by UID only.
func TestLogOfAWorkerNamesItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		table := emptyTable(t)
		table.deps.Runtime = broken{}
		table.Set(named("u"), false)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), log))
		done := make(chan error)
		go func() { done <- table.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		said := log.GetSink().(ktesting.Underlier).GetBuffer().String()
		if !strings.Contains(said, `pod="ns/p" podUID="u"`) {
			t.Errorf("logged: %s", said)
		}
	})
}
