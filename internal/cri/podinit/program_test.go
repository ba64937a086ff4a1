package podinit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// initEnv makes the test binary become the init at this path, with a child that has exited.
const initEnv = "WHERRY_TEST_INIT"

func TestMain(m *testing.M) {
	if path := os.Getenv(initEnv); path != "" {
		fmt.Fprintln(os.Stderr, becomeInit(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

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
	program, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, program, 0o755); err != nil {
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
