package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// TestAgentsOfTheNodeWatchItsPods: an agent on the node sees a pod come, run, be deleted and go, in this order, without the API
// server, and without a step back.
func TestAgentsOfTheNodeWatchItsPods(t *testing.T) {
	c := startCluster(t)
	conn, err := grpc.NewClient("unix:"+filepath.Join(c.data, "kubelet/pods-api/pods-api.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := podsapi.NewPodsClient(conn)
	stream, err := client.WatchPods(ctx, &podsapi.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	next := func() (podsapi.EventType, *v1.Pod) {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		p := &v1.Pod{}
		if err := p.Unmarshal(e.Pod); err != nil {
			t.Fatal(err)
		}
		return e.Type, p
	}
	for event, _ := next(); event != podsapi.EventType_INITIAL_SYNC_COMPLETE; event, _ = next() {
	}
	c.create(busybox("seen"))
	var uid types.UID
	var states []string
	for len(states) == 0 || states[len(states)-1] != "gone" {
		event, p := next()
		if p.Name != "seen" {
			continue
		}
		if uid == "" {
			uid = p.UID
		}
		state := string(p.Status.Phase)
		switch {
		case p.UID != uid || (event == podsapi.EventType_ADDED) != (len(states) == 0):
			t.Fatalf("%v of %s after %q", event, p.UID, states)
		case event == podsapi.EventType_DELETED:
			state = "gone"
		case p.DeletionTimestamp != nil:
			state = "deleted"
		}
		if slices.Contains(states, state) {
			if states[len(states)-1] != state {
				t.Errorf("%s again after %q", state, states)
			}
			continue
		}
		states = append(states, state)
		if state == "Running" {
			one, err := client.GetPod(ctx, &podsapi.GetPodRequest{PodUID: string(uid)})
			got := &v1.Pod{}
			if err != nil || got.Unmarshal(one.Pod) != nil || got.Name != "seen" || got.Status.PodIP == "" {
				t.Errorf("%v: %+v", err, got.Status)
			}
			c.kubectl("delete", "pod", "seen", "--wait=false", "--grace-period=1")
		}
	}
	if want := []string{"Pending", "Running", "deleted", "gone"}; !slices.Equal(states, want) {
		t.Errorf("seen were %q, want %q", states, want)
	}
}
