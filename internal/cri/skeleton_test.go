package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestWritableLayerHasNoPlaces checks what the runtime itself writes into a container's layer:
// nothing, because the skeleton has every place where it mounts something.
func TestWritableLayerHasNoPlaces(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	folder, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	n.must(os.WriteFile(file, []byte("hello"), 0o644))
	cfg := containerConfig("c", "sh", "-c", "sleep 1000")
	cfg.Mounts = []*runtimeapi.Mount{
		{HostPath: folder, ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount"},
		{HostPath: folder, ContainerPath: "/dev/in-memory"},
		{HostPath: folder, ContainerPath: "/../data/"},
	}
	id := p.start(cfg)
	wantEmpty := func(id string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(n.cfg.layout().Containers(), id, "upper"))
		n.must(err)
		if len(entries) > 0 {
			t.Errorf("the writable layer has %v", entries)
		}
	}
	wantEmpty(id)
	if got := n.exec(id, "stat", "-c", "%a %U", "/", "/var/run/secrets", "/data"); got != "755 root\n755 root\n"+modeOf(t, folder)+" root\n" {
		t.Errorf("modes: %q", got)
	}
	cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{HostPath: file, ContainerPath: "/data/file"}, &runtimeapi.Mount{HostPath: folder, ContainerPath: "/etc/hosts"})
	cfg.Metadata.Name = "other"
	other := p.start(cfg)
	wantEmpty(other)
	if got := n.exec(other, "cat", "/data/file"); got != "hello" {
		t.Errorf("mounted file: %q", got)
	}
	same := cfg
	same.Metadata.Name = "same"
	p.start(same)
	if made, err := os.ReadDir(n.cfg.layout().Skeletons()); err != nil || len(made) != 2 {
		t.Errorf("skeletons: %v, %v", made, err)
	}
}

func modeOf(t *testing.T, dir string) string {
	t.Helper()
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%o", st.Mode().Perm())
}
