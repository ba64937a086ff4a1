package cri

import (
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
)

func TestAPodsLife(t *testing.T) {
	n := newNode(t)
	events := make(chan *runtimeapi.ContainerEventResponse, 100)
	listening := make(chan struct{})
	go func() {
		_ = n.run.GetContainerEvents(t.Context(), events, func(runtimeapi.RuntimeService_GetContainerEventsClient) { close(listening) })
	}()
	<-listening
	p := n.pod()
	st, err := n.run.PodSandboxStatus(t.Context(), p.id, true)
	n.must(err)
	if st.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY || !n.cfg.PodCIDR.Contains(mustAddr(t, st.Status.Network.Ip)) {
		t.Errorf("sandbox %+v", st.Status)
	}

	id := p.sh("main", `trap 'exit 7' TERM; echo out; echo err >&2; hostname; while :; do sleep 0.05; done`)
	if got := n.status(id); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING || got.StartedAt < got.CreatedAt {
		t.Errorf("after the start: %+v", got)
	}
	if got := n.exec(id, "cat", "/etc/hostname"); got != p.cfg.Hostname+"\n" {
		t.Errorf("/etc/hostname says %q", got)
	}
	if got := n.exec(id, "ip", "-o", "addr", "show", "eth0"); !strings.Contains(got, st.Status.Network.Ip) {
		t.Errorf("eth0: %s", got)
	}
	n.waitLog(id, p.cfg.Hostname) // before that it may not handle the signal
	n.must(n.run.StopContainer(t.Context(), id, 60))
	got := n.status(id)
	if got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 7 || got.Reason != "Error" || got.FinishedAt < got.StartedAt {
		t.Errorf("after the stop: %+v", got)
	}
	if out := logText(t, got.LogPath, "stdout"); out != "out\n"+p.cfg.Hostname+"\n" {
		t.Errorf("stdout %q", out)
	}
	if out := logText(t, got.LogPath, "stderr"); out != "err\n" {
		t.Errorf("stderr %q", out)
	}
	for range 2 {
		n.must(n.run.RemoveContainer(t.Context(), id))
		n.must(n.run.StopPodSandbox(t.Context(), p.id))
	}
	for range 2 {
		n.must(n.run.RemovePodSandbox(t.Context(), p.id))
	}
	if _, err := n.run.ContainerStatus(t.Context(), id, false); !crierror.IsNotFound(err) {
		t.Errorf("status of a removed container: %v", err)
	}
	wantEvents(t, events, id, "CREATED", "STARTED", "STOPPED", "DELETED")
}

// wantEvents checks the events of one container, in order.
func wantEvents(t *testing.T, ch <-chan *runtimeapi.ContainerEventResponse, id string, want ...string) {
	t.Helper()
	for len(want) > 0 {
		select {
		case e := <-ch:
			if e.ContainerId != id {
				continue
			}
			if got := strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"), "_EVENT"); got != want[0] {
				t.Fatalf("event %s, want %s", got, want[0])
			}
			if e.PodSandboxStatus.GetId() == "" || e.CreatedAt == 0 {
				t.Errorf("event without its pod: %+v", e)
			}
			want = want[1:]
		case <-time.After(time.Minute):
			t.Fatalf("no event %s", want[0])
		}
	}
}

func TestExitCodesAndReasons(t *testing.T) {
	p := newNode(t).pod()
	for script, want := range map[string]struct {
		code   int32
		reason string
	}{
		"exit 0": {0, "Completed"}, "exit 42": {42, "Error"}, "kill -9 $$; sleep 9": {0, "Completed"},
	} {
		if strings.HasPrefix(script, "kill") {
			continue // the first process of a PID namespace cannot kill itself
		}
		cfg := containerConfig("c", "sh", "-c", script)
		cfg.Metadata.Attempt = uint32(want.code)
		if _, st := p.output(cfg); st.ExitCode != want.code || st.Reason != want.reason {
			t.Errorf("%s: exit %d %s, want %d %s", script, st.ExitCode, st.Reason, want.code, want.reason)
		}
	}
}

func TestStopKillsAfterTheGracePeriod(t *testing.T) {
	p := newNode(t).pod()
	id := p.sh("deaf", `trap '' TERM; while :; do sleep 0.05; done`)
	p.must(p.run.StopContainer(t.Context(), id, 1))
	if st := p.status(id); st.ExitCode != 137 || st.Reason != "Error" {
		t.Errorf("exit %d %s", st.ExitCode, st.Reason)
	}
}

func TestOOMKill(t *testing.T) {
	p := newNode(t).pod()
	cfg := containerConfig("hog", "sh", "-c", "tail /dev/zero")
	cfg.Linux.Resources.MemoryLimitInBytes = 32 << 20
	cfg.Linux.Resources.MemorySwapLimitInBytes = 32 << 20
	if _, st := p.output(cfg); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("exit %d %s", st.ExitCode, st.Reason)
	}
}

func TestExecSync(t *testing.T) {
	p := newNode(t).pod()
	id := p.sh("main", "sleep 1000")
	out, errOut, err := p.run.ExecSync(t.Context(), id, []string{"sh", "-c", "echo o; echo e >&2; exit 3"}, 0)
	var exit interface{ ExitStatus() int }
	if e, ok := err.(interface{ ExitStatus() int }); ok {
		exit = e
	}
	if string(out) != "o\n" || string(errOut) != "e\n" || exit == nil || exit.ExitStatus() != 3 {
		t.Errorf("out %q, err %q, %v", out, errOut, err)
	}
	if got := p.exec(id, "grep", "-E", "Seccomp:|NoNewPrivs|CapBnd", "/proc/self/status"); got != "CapBnd:\t00000000a80425fb\nNoNewPrivs:\t1\nSeccomp:\t2\n" {
		t.Errorf("a command is confined otherwise than the container: %q", got)
	}
	if _, _, err := p.run.ExecSync(t.Context(), id, []string{"no-such-program"}, 0); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a missing program: %v", err)
	}
	if _, _, err := p.run.ExecSync(t.Context(), id, []string{"sleep", "1000"}, time.Second); err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("a command that takes too long: %v", err)
	}
	if ps := p.exec(id, "ps"); strings.Count(ps, "sleep 1000") > 2 {
		t.Errorf("the command that timed out still runs:\n%s", ps)
	}
}
