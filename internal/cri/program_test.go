package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container used to be Running, and its started event was sent, while its first process was
// still the OCI runtime: an exec, a probe or a signal at that moment did not reach its program.
func TestRunningBeforeItsProgramRan(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		for i := range 20 {
			id := p.start(containerConfig(fmt.Sprint("c", i), "sleep", "1000"))
			if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("started, and %s", st.State)
			}
			c, err := n.container(id)
			n.must(err)
			if got := commandLine(t, c.PID()); got != "sleep 1000" {
				t.Fatalf("start %d: the process of a running container is %q", i, got)
			}
			n.must(n.run.RemoveContainer(t.Context(), id))
		}
	})
}

// commandLine returns a process's arguments. It is empty in the middle of an exec, when the
// old program is gone and the new one is being mapped.
func commandLine(t *testing.T, pid int) string {
	t.Helper()
	for {
		doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(doc) > 0 {
			return strings.ReplaceAll(strings.TrimRight(string(doc), "\x00"), "\x00", " ")
		}
	}
}

// A daemon that was killed after it had opened crun's FIFO, and before it wrote to it, used to
// leave the container's first process in a loop at the end of that file. The next start's open
// then made the container exit with code 1.
func TestStartAfterOneThatWasKilledBeforeItsByte(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	for i := range 30 {
		id := p.create(containerConfig(fmt.Sprint("c", i), "sleep", "1000"))
		fifo := filepath.Join(n.cfg.layout().RuntimeState(n.Server.cfg.DefaultRuntime), id, "exec.fifo")
		f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
		n.must(err)
		n.must(f.Close())
		n.must(n.run.StartContainer(t.Context(), id))
		if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("start %d: %s, %d %s", i, st.State, st.ExitCode, st.Message)
		}
		n.must(n.run.RemoveContainer(t.Context(), id))
	}
}
