package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCDIDevices: a driver's spec gives the container a device node, a variable and a
// mount, and its hooks run at their times.
func TestCDIDevices(t *testing.T) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			specs := t.TempDir()
			n := newNode(t, func(c *Config) { c.DefaultRuntime, c.CDISpecDirs = name, []string{specs} })
			trail := filepath.Join(n.dir, "trail")
			// A hook that exits without reading its state can kill crun 1.8, too (SIGPIPE).
			hook := func(at string) string {
				return fmt.Sprintf(`{"hookName":%q,"path":"/bin/sh","args":["sh","-c","cat > /dev/null; echo %s >> %s"]}`, at, at, trail)
			}
			n.must(os.WriteFile(filepath.Join(specs, "vendor.json"), fmt.Appendf(nil, `{"cdiVersion":"0.6.0","kind":"vendor.com/gpu",
				"containerEdits":{"env":["VENDOR=here"]},
				"devices":[{"name":"one","containerEdits":{"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/zero"}],
					"mounts":[{"hostPath":%q,"containerPath":"/driver","options":["ro","bind"]}],"hooks":[%s,%s,%s]}},
				{"name":"two","containerEdits":{"env":["TWO=2"]}}]}`, specs, hook("createRuntime"), hook("poststart"), hook("poststop")), 0o600))
			p := n.pod()
			cfg := containerConfig("gpu", "sh", "-c", `head -c3 /dev/gpu0 | wc -c; echo $VENDOR $TWO; ls /driver; sleep 1000`)
			cfg.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=one"}}
			cfg.Annotations = map[string]string{"cdi.k8s.io/plugin_two": "vendor.com/gpu=two"}
			id := p.create(cfg)
			// runc 1.1 runs the poststart hooks too early, at this point already.
			if doc, err := os.ReadFile(trail); err != nil || !strings.HasPrefix(string(doc), "createRuntime\n") || strings.Contains(string(doc), "poststop") {
				t.Errorf("before the start: %q, %v", doc, err)
			}
			n.must(n.run.StartContainer(t.Context(), id))
			n.waitLog(id, "vendor.json")
			if got := logText(t, n.status(id).GetLogPath(), "stdout"); got != "3\nhere 2\nvendor.json\n" {
				t.Errorf("the container sees %q", got)
			}
			n.must(n.run.StopContainer(t.Context(), id, 0))
			n.must(n.run.RemoveContainer(t.Context(), id))
			if doc, err := os.ReadFile(trail); err != nil || string(doc) != "createRuntime\npoststart\npoststop\n" {
				t.Errorf("hooks that ran: %q, %v", doc, err)
			}
			cfg = containerConfig("none", "true")
			cfg.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=three"}}
			_, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg)
			if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "unresolvable CDI devices vendor.com/gpu=three") {
				t.Errorf("a device that no spec has: %v", err)
			}
		})
	}
}

// TestPipeAmongCDISpecs: making a container that asked for a device used to hang for ever.
func TestPipeAmongCDISpecs(t *testing.T) {
	specs := t.TempDir()
	n := newNode(t, func(c *Config) { c.CDISpecDirs = []string{specs, filepath.Join(specs, "absent")} })
	n.must(unix.Mkfifo(filepath.Join(specs, "vendor.json"), 0o600))
	p := n.pod()
	cfg := containerConfig("gpu", "true")
	cfg.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=one"}}
	if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "vendor.json: is not a regular file") {
		t.Errorf("got %v", err)
	}
}
