package cri

import (
	"fmt"
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container was Running, and its started event was sent, while its first process was the
// OCI runtime still: an exec, a probe or a signal right then did not meet its program.
func TestRunningBeforeItsProgramRan(t *testing.T) {
	// Of runc's containers there is no such promise: see docs/runtime.md.
	n := newNode(t)
	p := n.pod()
	for i := range 20 {
		id := p.start(containerConfig(fmt.Sprint("c", i), "sleep", "1000"))
		if st := n.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("started, and %s", st.State)
		}
		c, err := n.findContainer(id)
		n.must(err)
		doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.current().PID))
		n.must(err)
		if got := strings.ReplaceAll(strings.TrimRight(string(doc), "\x00"), "\x00", " "); got != "sleep 1000" {
			t.Fatalf("start %d: the process of a running container is %q", i, got)
		}
		n.must(n.run.RemoveContainer(t.Context(), id))
	}
}
