package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/oci"
)

func (n *node) monitor(id string) int {
	n.t.Helper()
	pid, err := oci.ReadPID(n.bundle(id).MonitorPIDFile())
	n.must(err)
	return pid
}

// processGone reports whether the process has exited, reaped or not.
func processGone(pid int) bool {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(doc), ") Z ")
}

// Without conmon nobody learns the exit code or reads the output, so the container is killed, as
// containerd kills one whose shim was killed. Its neighbours keep running.
func TestKilledMonitorEndsTheContainer(t *testing.T) {
	n := newNode(t)
	p := n.pod(sharedPID)
	neighbour := p.start(inSharedPID(containerConfig("n", "sh", "-c", "i=0; while ! [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 6")))
	for attempt, kill := range []func(pid int){
		func(pid int) { n.must(unix.Kill(pid, unix.SIGKILL)) },
		func(pid int) { // while the server is stopped
			n.stop()
			n.must(unix.Kill(pid, unix.SIGKILL))
			n.openImages()
			n.start()
		},
	} {
		cfg := inSharedPID(containerConfig("c", "sh", "-c", "sleep 1000 & while :; do echo x; sleep 0.1; done"))
		cfg.Metadata.Attempt = uint32(attempt)
		id := p.start(cfg)
		pid := n.containers[id].PID()
		kill(n.monitor(id))
		st := n.waitExit(id)
		if st.ExitCode != 137 || st.Reason != "ContainerStatusUnknown" || !strings.Contains(st.Message, "conmon") {
			t.Errorf("attempt %d: %+v", attempt, st)
		}
		if !processGone(pid) {
			t.Errorf("attempt %d: the container's process still runs", attempt)
		}
		<-n.containers[id].Cleaned()
		n.must(n.run.RemoveContainer(t.Context(), id))
	}
	n.touch(neighbour, "/stop")
	st := n.waitExit(neighbour)
	if st.ExitCode != 6 {
		t.Errorf("the neighbour: %+v", st)
	}
	checkLines(t, logText(t, st.LogPath, "stdout"))
	if b, err := n.run.PodSandboxStatus(t.Context(), p.id, false); err != nil || b.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("the sandbox: %v, %v", b, err)
	}
}

// TestKilledWhileConmonStarts: conmon and the runtime continue after the server's end, and their
// PIDs are not on disk yet.
func TestKilledWhileConmonStarts(t *testing.T) {
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Fatal(err)
	}
	slow := filepath.Join(t.TempDir(), "slow")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" create \"*) sleep 1;; esac\nexec %s \"$@\"\n", crun)
	if err := os.WriteFile(slow, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(c *Config) {
		c.Runtimes = map[string]RuntimeConfig{"slow": {Path: slow, Type: oci.Crun}}
		c.DefaultRuntime = "slow"
	})
	p := n.pod()
	cfg := containerConfig("c", "sleep", "1000")
	n.killedAt("conmon-started", job{Verb: "create", Sandbox: p.id}, p.cfg, cfg)
	n.eachProcess(func(pid int, line string) { t.Errorf("process left: %d %s", pid, line) })
	p.start(cfg)
}

func TestDamagedRecords(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	kept := p.sh("kept", "sleep 1000")
	ended := p.sh("ended", "exit 5")
	n.waitExit(ended)
	<-n.containers[ended].Cleaned()
	broken := p.sh("broken", "sleep 1000")
	lost := p.sh("lost", "sleep 1000")
	other := n.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	inOther := other.sh("c", "sleep 1000")
	halfKnown := n.pod(sharedPID)
	inHalf := halfKnown.start(inSharedPID(containerConfig("c", "sleep", "1000")))
	folder := n.pod()
	gone := map[string]int{}
	for _, id := range []string{broken, lost, inOther, inHalf} {
		gone[id] = n.containers[id].PID()
	}
	damage := map[string]string{
		filepath.Join(n.cfg.layout().Containers(), lost, "container.json"):           `{}`,
		filepath.Join(n.cfg.layout().ContainerState(), broken, "status.json"):        `{`,
		filepath.Join(n.cfg.layout().Sandboxes(), other.id, "sandbox.json"):          "",
		filepath.Join(n.cfg.layout().SandboxState(), halfKnown.id, "status.json"):    "\x00\x00\x00\x00",
		filepath.Join(n.cfg.layout().Containers(), ended, "status.json"):             `{"version":1,"data":{"exitCode":"x"}}`,
		filepath.Join(n.cfg.layout().Sandboxes(), folder.id, "sandbox.json", "x"):    "",
		filepath.Join(n.cfg.layout().Sandboxes(), "stranger", "not-a-record"):        "x",
		filepath.Join(n.cfg.layout().Containers(), "stranger", "not-a-record.jsonx"): "x",
	}
	n.stop()
	n.must(os.Remove(filepath.Join(n.cfg.layout().Sandboxes(), folder.id, "sandbox.json")))
	for path, text := range damage {
		n.must(disk.WriteFile(path, []byte(text), 0o600))
	}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	n.log = log
	n.openImages()
	n.start()
	said := log.GetSink().(ktesting.Underlier).GetBuffer().String()
	for path := range damage {
		path = strings.TrimSuffix(path, "/x") // a folder where a file was
		if filepath.Base(filepath.Dir(path)) != "stranger" && !strings.Contains(said, path) {
			t.Errorf("the log does not name %s", path)
		}
	}
	for _, id := range []string{broken, lost, inOther, inHalf, "stranger"} {
		if _, err := n.run.ContainerStatus(t.Context(), id, false); !crierror.IsNotFound(err) {
			t.Errorf("container %s: %v", id, err)
		}
		if pid := gone[id]; pid != 0 && !processGone(pid) {
			t.Errorf("process %d of container %s still runs", pid, id)
		}
	}
	for _, id := range []string{other.id, halfKnown.id, folder.id, "stranger"} {
		if _, err := n.run.PodSandboxStatus(t.Context(), id, false); !crierror.IsNotFound(err) {
			t.Errorf("sandbox %s: %v", id, err)
		}
		if disk.Exists(filepath.Join(n.cfg.layout().Sandboxes(), id)) || disk.Exists(filepath.Join(n.cfg.layout().SandboxState(), id)) {
			t.Errorf("folders of sandbox %s are left", id)
		}
	}
	if st := n.status(kept); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("their neighbour: %+v", st)
	}
	if st := n.waitExit(ended); st.ExitCode != 5 { // from conmon's exit file
		t.Errorf("one whose end was recorded badly: %+v", st)
	}
	p.sh("again", "sleep 1000")
}

// fill takes all the space of a file system; release gives it back.
func (n *node) fill(dir string) (release func()) {
	n.t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	n.must(err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				n.t.Fatal(err)
			}
			size /= 4
		}
	}
	n.must(f.Close())
	return func() {
		n.t.Helper()
		n.must(os.Remove(path))
	}
}

// TestFullDisk fills the disk of the durable folder, and then that of the state folder.
func TestFullDisk(t *testing.T) {
	for _, name := range []string{"root", "state"} {
		t.Run(name, func(t *testing.T) {
			disk := ""
			n := newNode(t, func(c *Config) {
				disk = map[string]string{"root": c.Root, "state": c.State}[name]
				if err := mount.Tmpfs(disk, 0o711, 4<<20); err != nil {
					t.Fatal(err)
				}
			})
			n.disks = []string{disk}
			p := n.pod()
			waits := p.create(containerConfig("waits", "sh", "-c", "exit 3"))
			runs := p.sh("runs", "trap 'exit 8' TERM; echo listens; while :; do sleep 0.02; done")
			n.waitLog(runs, "listens")

			release := n.fill(disk)
			_, err := n.run.RunPodSandbox(t.Context(), n.podConfig(), "")
			wantFull(t, "RunPodSandbox", err)
			_, err = n.run.CreateContainer(t.Context(), p.id, containerConfig("late", "true"), p.cfg)
			wantFull(t, "CreateContainer", err)
			if bs, _ := n.run.ListPodSandbox(t.Context(), nil); len(bs) != 1 {
				t.Errorf("half-made sandboxes: %v", bs)
			}
			if cs, _ := n.run.ListContainers(t.Context(), nil); len(cs) != 2 {
				t.Errorf("half-made containers: %v", cs)
			}
			if ids, _ := os.ReadDir(n.cfg.layout().Containers()); len(ids) != 2 {
				t.Errorf("folders of containers: %v", ids)
			}
			if name == "state" {
				wantFull(t, "StartContainer", n.run.StartContainer(t.Context(), waits))
			} else {
				n.must(n.run.StartContainer(t.Context(), waits)) // it needs nothing of this disk
			}
			_, _, err = n.run.ExecSync(t.Context(), runs, []string{"true"}, time.Minute)
			if name == "state" {
				wantFull(t, "ExecSync", err)
			} else {
				n.must(err)
			}
			if left, _ := filepath.Glob(n.bundle(runs).Dir + "/exec-*"); len(left) > 0 {
				t.Errorf("a half-made command: %v", left)
			}
			n.must(n.run.StopContainer(t.Context(), runs, 60))
			if st := n.status(runs); st.ExitCode != 8 {
				t.Errorf("one that ended while the disk was full: %+v", st)
			}
			release()

			if name == "state" {
				n.must(n.run.StartContainer(t.Context(), waits))
			}
			if st := n.waitExit(waits); st.ExitCode != 3 {
				t.Errorf("the container that waited: %+v", st)
			}
			n.restart()
			for id, want := range map[string]int32{runs: 8, waits: 3} {
				if st := n.waitExit(id); st.ExitCode != want {
					t.Errorf("after a restart: %+v, want %d", st, want)
				}
			}
			n.pod().sh("c", "sleep 1000")
			n.must(n.run.RemovePodSandbox(t.Context(), p.id))
		})
	}
}

func wantFull(t *testing.T, verb string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), unix.ENOSPC.Error()) {
		t.Errorf("%s on a full disk: %v", verb, err)
	}
}

// TestFullDiskOfLogs: the container keeps running without its lines, a rotation fails without
// harm, and lines appear again once there is space.
func TestFullDiskOfLogs(t *testing.T) {
	n := newNode(t)
	disk := filepath.Join(n.dir, "logs")
	n.must(mount.Tmpfs(disk, 0o755, 1<<20))
	n.disks = []string{disk}
	p := n.pod()
	id := p.sh("c", "i=0; while ! [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.001; done; echo last; exit 4")
	path := n.status(id).LogPath
	waitFor(t, "the first line", func() bool { return logText(t, path, "stdout") != "" })
	release := n.fill(disk)
	size := func() int64 {
		info, err := os.Stat(path)
		n.must(err)
		return info.Size()
	}
	waitFor(t, "the disk to be full", func() bool {
		before := size()
		n.exec(id, "sleep", "0.05")
		return size() == before
	})
	if ok, err := n.rotate(t.Context(), id, path, path+".1"); err != nil || !ok { // makes an empty file, which needs no space
		t.Errorf("rotation on a full disk: %v, %v", ok, err)
	}
	release()
	waitFor(t, "lines again", func() bool { return size() > 0 })
	n.touch(id, "/stop")
	if st := n.waitExit(id); st.ExitCode != 4 {
		t.Errorf("%+v", st)
	}
	if text := logText(t, path, "stdout"); !strings.HasSuffix(text, "\nlast\n") {
		t.Errorf("the log ends with %q", text[max(0, len(text)-40):])
	}
}

// TestRetriesJoinTheCallInFlight: a caller gives up, calls again, and gets what the first call
// made.
func TestRetriesJoinTheCallInFlight(t *testing.T) {
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate") // created containers wait for a reader of this FIFO
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Fatal(err)
	}
	slow := filepath.Join(dir, "slow")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" create \"*) echo x >> %s/calls; : > %s;; esac\nexec %s \"$@\"\n", dir, gate, crun)
	if err := os.WriteFile(slow, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(c *Config) { c.Runtimes = map[string]RuntimeConfig{"slow": {Path: slow, Type: oci.Crun}} })
	cfg := n.podConfig(sharedPID) // its init is a container, too
	container := inSharedPID(containerConfig("c", "sh", "-c", "trap 'echo term' TERM; echo ready; while ! [ -e /stop ]; do sleep 0.02; done"))
	calls := func() int {
		doc, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(doc) / 2
	}
	// joined makes the first caller give up while the runtime works, and then lets it finish.
	joined := func(verb string, call func(context.Context) (string, error)) string {
		t.Helper()
		before := calls()
		first, giveUp := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := call(first)
			result <- err
		}()
		waitFor(t, verb, func() bool { return calls() == before+1 })
		giveUp()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the first caller got %v", verb, err)
		}
		ids := make(chan string, 2)
		for range cap(ids) {
			go func() {
				id, err := call(t.Context())
				if err != nil {
					t.Error(verb, err)
				}
				ids <- id
			}()
		}
		f, err := os.Open(gate)
		n.must(err)
		n.must(f.Close())
		a, b := <-ids, <-ids
		if a == "" || a != b || calls() != before+1 {
			t.Errorf("%s: %q and %q of %d calls", verb, a, b, calls()-before)
		}
		return a
	}
	sandbox := joined("RunPodSandbox", func(ctx context.Context) (string, error) { return n.run.RunPodSandbox(ctx, cfg, "slow") })
	id := joined("CreateContainer", func(ctx context.Context) (string, error) {
		return n.run.CreateContainer(ctx, sandbox, container, cfg)
	})
	n.must(n.run.StartContainer(t.Context(), id))
	n.stopsAreJoined(id)
}

// stopsAreJoined: a program must not get the stop signal once for every retry.
func (n *node) stopsAreJoined(id string) {
	n.t.Helper()
	path := n.status(id).LogPath
	text := func() string { return logText(n.t, path, "stdout") }
	waitFor(n.t, "the program", func() bool { return text() == "ready\n" })
	for range 3 {
		ctx, cancel := context.WithTimeout(n.t.Context(), 200*time.Millisecond)
		if err := n.run.StopContainer(ctx, id, 60); !errors.Is(err, context.DeadlineExceeded) && !crierror.IsTimeout(err) {
			n.t.Errorf("StopContainer: %v", err)
		}
		cancel()
		waitFor(n.t, "the signal", func() bool { return text() == "ready\nterm\n" })
	}
	done := make(chan error, 1)
	go func() { done <- n.run.StopContainer(n.t.Context(), id, 60) }()
	n.touch(id, "/stop")
	n.must(<-done)
	if st := n.status(id); st.ExitCode != 0 || text() != "ready\nterm\n" {
		n.t.Errorf("exit %d, log %q", st.ExitCode, text())
	}
}

func TestFiveHundredContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 500 containers")
	}
	const pods, each = 10, 50
	n := newNode(t)
	warm := n.pod()
	warm.sh("c", "exit 0")
	n.must(n.run.RemovePodSandbox(t.Context(), warm.id))
	before := n.held()

	work := make(chan *pod)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			var err error
			for p := range work {
				for i := range each {
					if err == nil {
						err = p.tryStart(containerConfig(fmt.Sprint("c", i), "sleep", "100000"))
					}
				}
			}
			errs <- err
		}()
	}
	for range pods {
		work <- n.pod()
	}
	close(work)
	for range cap(errs) {
		n.must(<-errs)
	}
	running := n.held()
	const perContainer = 2 // its watcher and conmon's pidfd; anything more grows without need
	if running.files-before.files > perContainer*pods*each || running.goroutines-before.goroutines > perContainer*pods*each {
		t.Errorf("%+v with %d containers, %+v without", running, pods*each, before)
	}
	start := time.Now()
	list, err := n.run.ListContainers(t.Context(), nil)
	t.Logf("ListContainers: %v", time.Since(start))
	n.must(err)
	if len(list) != pods*each {
		t.Fatalf("%d containers", len(list))
	}
	start = time.Now()
	n.restart()
	t.Logf("restart: %v", time.Since(start))
	if list, err = n.run.ListContainers(t.Context(), nil); err != nil || len(list) != pods*each {
		t.Fatalf("%d containers after the restart, %v", len(list), err)
	}
	for _, c := range list {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("container %s is %s", c.Id, c.State)
		}
	}
	start = time.Now()
	sandboxes, err := n.run.ListPodSandbox(t.Context(), nil)
	n.must(err)
	for _, b := range sandboxes {
		n.must(n.run.RemovePodSandbox(t.Context(), b.Id))
	}
	t.Logf("removal: %v", time.Since(start))
	waitFor(t, "files and goroutines to be given back", func() bool {
		after := n.held()
		return after.files <= before.files+2 && after.goroutines <= before.goroutines+2
	})
}

func (p *pod) tryStart(cfg *runtimeapi.ContainerConfig) error {
	id, err := p.run.CreateContainer(p.t.Context(), p.id, cfg, p.cfg)
	if err != nil {
		return err
	}
	return p.run.StartContainer(p.t.Context(), id)
}

// holding is what this process has open.
type holding struct{ files, goroutines int }

func (n *node) held() holding {
	n.t.Helper()
	d, err := os.Open("/proc/self/fd")
	n.must(err)
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		n.t.Fatal(err)
	}
	return holding{len(names), runtime.NumGoroutine()}
}

// An error from the wait for a container's end did not say which container it was.
func TestFailedWaitNamesTheContainer(t *testing.T) {
	start, err := monitor.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	m, err := monitor.Open(os.Getpid(), start)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil { // a wait on it fails
		t.Fatal(err)
	}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	s := &Server{store: newStore(), ctx: t.Context()}
	s.watch(klog.NewContext(t.Context(), log), &container.Container{ID: "c1"}, m)
	s.work.Wait()
	if said := log.GetSink().(ktesting.Underlier).GetBuffer().String(); !strings.Contains(said, `container="c1"`) {
		t.Errorf("logged: %s", said)
	}
}
