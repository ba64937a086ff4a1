package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// If the kernel refuses to run a program, such as a script without its interpreter, the
// container's log says so, as with other runtimes.
func TestProgramThatTheKernelDoesNotTake(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		for name, text := range map[string]string{"interpreter": "#!/no/such/interpreter\n", "format": "\x01\x02\x03\x04"} {
			script := filepath.Join(t.TempDir(), "script")
			n.must(os.WriteFile(script, []byte(text), 0o755)) //nolint:gosec // a program
			cfg := containerConfig(name, "/script")
			cfg.Mounts = []*runtimeapi.Mount{{HostPath: script, ContainerPath: "/script", Readonly: true}}
			id := p.start(cfg)
			st := n.waitExit(id)
			log, err := os.ReadFile(st.LogPath)
			if err != nil || st.ExitCode != 1 || !strings.Contains(string(log), "exec") {
				t.Errorf("%s: ended with %d %s, log %q, %v", name, st.ExitCode, st.Reason, log, err)
			}
		}
	})
}
