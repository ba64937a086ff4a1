package cri

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
)

func sharedPID(c *runtimeapi.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
}

func inSharedPID(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	return cfg
}

// initEnv makes the test binary become the init at this path, with a child that has exited.
const initEnv = "WHERRY_TEST_INIT"

func becomeInit(path string) error {
	child, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		return err
	}
	// Wait for the child without reaping it.
	if err := unix.Waitid(unix.P_PID, child.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return err
	}
	return unix.Exec(path, []string{path}, nil)
}

// An orphan of a container that exited while the pod's init was still the OCI runtime used to
// stay a zombie for ever: SIGCHLD is ignored only after that.
func TestInitReapsWhatEndedBeforeIt(t *testing.T) {
	program, err := initProgram()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init")
	if err := writeProgram(path, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$") //nolint:noctx // killed below
	cmd.Env = append(os.Environ(), initEnv+"="+path)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	var exe, children string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		exe, _ = os.Readlink(proc + "exe")
		doc, err := os.ReadFile(fmt.Sprintf("%stask/%d/children", proc, cmd.Process.Pid))
		if children = string(doc); err == nil && exe == path && children == "" {
			return
		}
	}
	t.Fatalf("%s has zombies: %q (%s)", exe, children, out.String())
}

// A pod's init used to fail to start ("text file busy") if another child was being forked while
// the init was written.
func TestProgramRunsThoughOthersFork(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	for range 2 {
		forks.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("/bin/true").Run(); err != nil { //nolint:noctx // exits at once
					t.Error(err)
				}
			}
		})
	}
	dir := t.TempDir()
	for i := range 200 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := writeProgram(path, program); err != nil {
			t.Fatal(err)
		}
		if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
			t.Errorf("program %d: %v", i, err)
			break
		}
	}
	cancel()
	forks.Wait()
}

func TestSharedPIDNamespace(t *testing.T) {
	n := newNode(t)
	p := n.pod(sharedPID)
	a := p.start(inSharedPID(containerConfig("a", "sh", "-c", "sleep 1111")))
	b := p.start(inSharedPID(containerConfig("b", "sh", "-c", "(sleep 0.1 & exec true); sleep 2222")))
	if ps := p.exec(a, "ps"); !strings.Contains(ps, "sleep 2222") || !strings.Contains(ps, "/init") {
		t.Errorf("container a does not see b:\n%s", ps)
	}
	// The orphan of b exits and must not stay a zombie.
	p.exec(b, "sh", "-c", "while ps | grep -q '[s]leep 0.1'; do sleep 0.02; done")
	if ps := p.exec(a, "ps", "-o", "stat,args"); strings.Contains(ps, "\nZ") {
		t.Errorf("a zombie is left:\n%s", ps)
	}
	if _, _, err := p.run.ExecSync(t.Context(), a, []string{"ls", "/proc/1/root/"}, 0); err == nil {
		t.Error("a container reaches the root of the init")
	}
	n.restart()
	if st, err := n.run.PodSandboxStatus(t.Context(), p.id, false); err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("after a restart: %v, %v", st, err)
	}
	p.must(n.run.StopContainer(t.Context(), a, 0))
	if st := n.status(b); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the end of a ended b: %+v", st)
	}
}

func TestDeadInitStopsTheSandbox(t *testing.T) {
	n := newNode(t)
	events := n.events.subscribe()
	p := n.pod(sharedPID)
	c := p.start(inSharedPID(containerConfig("a", "sleep", "1000")))
	b, err := n.findSandbox(p.id)
	n.must(err)
	pid, err := oci.ReadPID(n.initBundle(b).PIDFile())
	n.must(err)
	n.must(unix.Kill(pid, unix.SIGKILL))
	n.waitExit(c)
	for timeout := time.After(time.Minute); b.ready(); {
		select {
		case <-events:
		case <-timeout:
			t.Fatal("the sandbox is still ready")
		}
	}
}
