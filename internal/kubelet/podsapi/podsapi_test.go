package podsapi

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/test/agents"
)

// node is a kubelet's pods, whose workers do not run, and a client.
type node struct {
	*podworker.Table
	podsapi.PodsClient
}

func start(t *testing.T) node {
	t.Helper()
	records, err := podworker.OpenRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	table := podworker.NewTable(podworker.NewPods(), podworker.Deps{Records: records, Node: func() podplan.Node { return podplan.Node{} }})
	conn := agents.Dial(t, func(ctx context.Context, socket string) error { return Run(ctx, socket, table.Pods) })
	return node{table, podsapi.NewPodsClient(conn)}
}

func pod(uid types.UID, phase v1.PodPhase) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p" + string(uid), UID: uid}, Status: v1.PodStatus{Phase: phase}}
}

func says(doc []byte) string {
	var p v1.Pod
	if err := p.Unmarshal(doc); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s/%s %s %s", p.Namespace, p.Name, p.UID, p.Status.Phase)
}

func TestListAndGet(t *testing.T) {
	n := start(t)
	n.Set(pod("2", v1.PodRunning), false)
	n.Set(pod("1", v1.PodPending), true)
	n.Adopt(pod("3", v1.PodRunning)) // nobody wants it
	list, err := n.ListPods(t.Context(), &podsapi.ListPodsRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.Pods) != 2 || says(list.Pods[0]) != "ns/p1 1 Pending" || says(list.Pods[1]) != "ns/p2 2 Running" {
		t.Errorf("%v, %v", list, err)
	}
	one, err := n.GetPod(t.Context(), &podsapi.GetPodRequest{PodUID: "2"})
	if err != nil || says(one.Pod) != "ns/p2 2 Running" {
		t.Errorf("%v, %v", one, err)
	}
	for _, uid := range []string{"3", "4", ""} {
		if _, err := n.GetPod(t.Context(), &podsapi.GetPodRequest{PodUID: uid}); status.Code(err) != codes.NotFound {
			t.Errorf("pod %q: %v", uid, err)
		}
	}
}

// What becomes of a pod while it is watched is seen on a real node (test/e2e).
func TestWatchBeginsWithAllPods(t *testing.T) {
	n := start(t)
	n.Set(pod("1", v1.PodPending), false)
	stream, err := n.WatchPods(t.Context(), &podsapi.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	want := func(event podsapi.EventType, said string) {
		t.Helper()
		got, err := stream.Recv()
		if err != nil || got.Type != event || got.Pod != nil && says(got.Pod) != said || (got.Pod == nil) != (said == "") {
			t.Errorf("%v, %v; want %v %s", got, err, event, said)
		}
	}
	want(podsapi.EventType_ADDED, "ns/p1 1 Pending")
	want(podsapi.EventType_INITIAL_SYNC_COMPLETE, "")
	n.Adopt(pod("3", v1.PodRunning)) // not told
	n.Set(pod("2", v1.PodPending), false)
	want(podsapi.EventType_ADDED, "ns/p2 2 Pending")
}

// A client that does not read gets what has happened meanwhile as one change, and no pod is lost to it.
func TestSlowClientMissesNoPod(t *testing.T) {
	pods := podworker.NewPods()
	changes, stop := pods.Watch()
	table := podworker.NewTable(pods, podworker.Deps{Records: &podworker.Records{}, Node: func() podplan.Node { return podplan.Node{} }})
	const many = 5000
	for i := range many {
		table.Set(pod(types.UID(fmt.Sprint(i)), v1.PodPending), false)
	}
	select {
	case <-changes.More():
	case <-time.After(time.Minute):
		t.Fatal("no change was told")
	}
	if got := len(changes.Take()); got != many {
		t.Errorf("%d pods have changed, want %d", got, many)
	}
	stop()
	table.Set(pod("late", v1.PodPending), false)
	if got := changes.Take(); len(got) > 0 {
		t.Errorf("after the end: %v", got)
	}
}
