package hollow

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var podNetwork = netip.MustParsePrefix("10.128.0.0/24")

// reported is a pod of which a former process has written a status.
func reported(states ...v1.ContainerStatus) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{AnnotationExitAfter: "1m", AnnotationExitCode: "7"}},
		Status:     v1.PodStatus{StartTime: new(metav1.Now()), Phase: v1.PodRunning, PodIP: "10.128.0.2", ContainerStatuses: states},
	}
	for _, s := range states {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: s.Name, Image: s.Image})
	}
	return p
}

func running(since time.Time) v1.ContainerStatus {
	return v1.ContainerStatus{
		Name: "main", Image: "example.com/main:1", ContainerID: "hollow://abc", RestartCount: 2,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
	}
}

func look(t *testing.T, r *madeUp) *runtimeapi.PodSandboxStatusResponse {
	t.Helper()
	st, err := r.PodSandboxStatus(t.Context(), sandboxID("u", 0), false)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestAContainerThatRanRunsOnForTheRestOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []types.UID
		r := newRuntime(podNetwork, func(uid types.UID) { ended = append(ended, uid) })
		r.adopt(reported(running(time.Now().Add(-50 * time.Second))))
		c := look(t, r).ContainersStatuses[0]
		if c.Id != "abc" || c.Metadata.Attempt != 2 || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%+v", c)
		}
		time.Sleep(9 * time.Second)
		if len(ended) > 0 {
			t.Error("ended too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c := look(t, r).ContainersStatuses[0]; c.State != runtimeapi.ContainerState_CONTAINER_EXITED || c.ExitCode != 7 || len(ended) != 1 {
			t.Errorf("%+v, told of %v", c, ended)
		}
	})
}

func TestTheAddressOfAnAdoptedPodIsNotGivenToOthers(t *testing.T) {
	r := newRuntime(podNetwork, func(types.UID) {})
	defer r.close()
	r.adopt(reported(running(time.Now())))
	id, err := r.runSandbox(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "other"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.PodSandboxStatus(t.Context(), id, false)
	if err != nil || st.Status.Network.Ip != "10.128.0.3" || look(t, r).Status.Network.Ip != "10.128.0.2" {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestOnlyWhatRanHereIsAdopted(t *testing.T) {
	ofOthers := running(time.Now())
	ofOthers.ContainerID = "containerd://abc"
	waiting := v1.ContainerStatus{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	backedOff := running(time.Now())
	backedOff.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	backedOff.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: metav1.Now()}
	unseen := running(time.Now())
	unseen.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	for name, tc := range map[string]struct {
		status v1.ContainerStatus
		want   string
	}{
		"of another runtime": {ofOthers, ""}, "not started": {waiting, ""}, "backed off": {backedOff, "CONTAINER_EXITED"},
		"of an unseen end": {unseen, "CONTAINER_EXITED"},
	} {
		r := newRuntime(podNetwork, func(types.UID) {})
		r.adopt(reported(tc.status))
		got := ""
		if r.has("u") {
			got = look(t, r).ContainersStatuses[0].State.String()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
