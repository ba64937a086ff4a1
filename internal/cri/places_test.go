package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMountsOverProc: crun used to cover /proc, through which it sets the confinement of the
// process, with a pod's volume.
func TestMountsOverProc(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		volume := filepath.Join(n.dir, "vol")
		n.must(os.Mkdir(volume, 0o755))
		file := filepath.Join(n.dir, "meminfo")
		n.must(os.WriteFile(file, []byte("MemTotal: 1 kB\n"), 0o644))
		for place, want := range map[string]string{
			"/proc": "inside /proc", "/proc/": "inside /proc", "//proc/../proc/./": "inside /proc", "proc": "inside /proc",
			"/proc/self/attr": "inside /proc", "/proc/sys": "inside /proc", "/": "the container's root", "/..": "the container's root",
		} {
			cfg := containerConfig("c", "true")
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: place, HostPath: volume}}
			if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", place, err)
			}
		}
		cfg := containerConfig("fine", "sh", "-c", "cat /proc/meminfo; ls -d /process /proc2/x")
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/proc/meminfo", HostPath: file}, {ContainerPath: "/process", HostPath: volume}, {ContainerPath: "/proc2/x", HostPath: volume},
		}
		if out, _ := p.output(cfg); out != "MemTotal: 1 kB\n/proc2/x\n/process\n" {
			t.Errorf("other places: %q", out)
		}
	})
}
