package cri

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/mount"
)

func TestRestartDisturbsNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	ip := n.podIP(p.id)
	runs := p.sh("runs", `i=0; while :; do i=$((i+1)); echo line $i; [ -e /stop ] && exit 9; sleep 0.02; done`)
	ends := p.sh("ends", `while ! [ -e /stop ]; do sleep 0.02; done; exit 5`)
	waits := p.create(containerConfig("waits", "sh", "-c", "exit 3"))
	before := n.status(runs)
	n.exec(ends, "sh", "-c", "(sleep 0.2; touch /stop) > /dev/null 2>&1 < /dev/null &")

	n.stop()
	c := n.containers[ends]
	for pid := c.PID(); disk.Exists("/proc/" + strconv.Itoa(pid)); { // it exits while nobody watches
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 10e6}, nil)
	}
	n.openImages()
	n.start()

	after := n.status(runs)
	if after.State != runtimeapi.ContainerState_CONTAINER_RUNNING || after.StartedAt != before.StartedAt || after.CreatedAt != before.CreatedAt {
		t.Errorf("the container that runs: %+v, was %+v", after, before)
	}
	if st := n.waitExit(ends); st.ExitCode != 5 || st.Reason != "Error" || st.FinishedAt < st.StartedAt {
		t.Errorf("the container that ended meanwhile: %+v", st)
	}
	if st := n.status(waits); st.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("the container that waits: %+v", st)
	}
	n.must(n.run.StartContainer(t.Context(), waits))
	if st := n.waitExit(waits); st.ExitCode != 3 {
		t.Errorf("a container started by the next process: %+v", st)
	}
	if got := n.podIP(p.id); got != ip {
		t.Errorf("address %s, was %s", got, ip)
	}
	n.touch(runs, "/stop")
	if st := n.waitExit(runs); st.ExitCode != 9 {
		t.Errorf("exit %d", st.ExitCode)
	}
	checkLines(t, logText(t, after.LogPath, "stdout"))
}

func (n *node) podIP(id string) string {
	n.t.Helper()
	st, err := n.run.PodSandboxStatus(n.t.Context(), id, false)
	n.must(err)
	return st.GetStatus().GetNetwork().GetIp()
}

// checkLines requires "line 1", "line 2" … without a gap.
func checkLines(t testing.TB, text string) {
	t.Helper()
	i := 0
	for line := range strings.Lines(text) {
		i++
		if want := "line " + strconv.Itoa(i) + "\n"; line != want {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	if i == 0 {
		t.Error("the log is empty")
	}
}

// TestReboot removes what a reboot removes: the state folder with everything in it.
func TestReboot(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", "sleep 1000")
	done := p.sh("done", "exit 4")
	n.waitExit(done)
	n.stop()
	n.eachProcess(func(pid int, _ string) { _ = unix.Kill(pid, unix.SIGKILL) })
	_ = unix.Kill(n.containers[id].PID(), unix.SIGKILL)
	n.forgetBoot()
	n.must(mount.UnmountUnder(n.cfg.State))
	n.must(mount.Tmpfs(n.cfg.State, 0o711, 0))
	n.openImages()
	n.start()
	if st, err := n.run.PodSandboxStatus(t.Context(), p.id, false); err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox after a reboot: %v, %v", st, err)
	}
	if st := n.waitExit(id); st.Reason != "ContainerStatusUnknown" || !strings.Contains(st.Message, "the machine was restarted") {
		t.Errorf("container after a reboot: %+v", st)
	}
	if st := n.status(done); st.ExitCode != 4 {
		t.Errorf("exit code of a container that had ended before: %+v", st)
	}
	n.must(n.run.RemovePodSandbox(t.Context(), p.id))
}

// forgetBoot makes every record look like one from another boot.
func (n *node) forgetBoot() {
	n.t.Helper()
	for _, pattern := range []string{n.cfg.layout().Sandboxes() + "/*/sandbox.json", n.cfg.layout().Containers() + "/*/container.json"} {
		files, err := filepath.Glob(pattern)
		n.must(err)
		for _, f := range files {
			doc, err := os.ReadFile(f)
			n.must(err)
			n.must(os.WriteFile(f, []byte(strings.Replace(string(doc), n.sandboxEnv.Boot, "another", 1)), 0o600))
		}
	}
}

// TestCopiesOfTheRuntimeAreSwept: crun copies itself to a file before it enters a container. If
// it was killed, the copy used to stay, in memory, until the machine was rebooted.
func TestCopiesOfTheRuntimeAreSwept(t *testing.T) {
	n := newNode(t)
	id := n.pod().sh("c", "sleep 1000")
	dir := n.cfg.layout().RuntimeState("")
	n.must(os.WriteFile(filepath.Join(dir, "crun.aB3xYz"), []byte("ELF"), 0o700))
	n.must(os.WriteFile(filepath.Join(dir, "else"), nil, 0o700))
	n.must(os.Mkdir(filepath.Join(dir, "crun.custom"), 0o700)) // a handler's state
	n.restart()
	var left []string
	entries, err := os.ReadDir(dir)
	n.must(err)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, " "); got != "crun crun.custom else runc" {
		t.Errorf("left: %s", got)
	}
	if out := n.exec(id, "echo", "lives"); out != "lives\n" {
		t.Errorf("exec: %q", out)
	}
}

// TestStartSaysWhatItWaitsFor: a conmon that did not exit used to hold up a start for ten seconds
// without any message.
func TestStartSaysWhatItWaitsFor(t *testing.T) {
	n := newNode(t)
	said := make(chan string, 1)
	n.Server.cfg.Progress = func(s string) { said <- s }
	id := n.pod().sh("c", "sleep 1000")
	c, err := n.container(id)
	n.must(err)
	n.must(n.telling(t.Context(), waitsFor(c), func() error {
		got := <-said // a step that ends only once its wait was reported
		if want := "waiting for conmon and the processes of container " + id[:12]; !strings.HasPrefix(got, want) {
			t.Errorf("said %q", got)
		}
		return nil
	}))
}
