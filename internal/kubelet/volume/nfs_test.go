package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/disks"
)

// TestNFS with a stand-in for the program: it is refused clearly without one, says what it said, and ends with the pod.
func TestNFS(t *testing.T) {
	m := newMounter(t, objs{})
	pod := podWith(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "server", Path: "/export"}})
	bin := t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	if _, err := disks.Find(nfsProgram); err == nil {
		t.Skip("this machine can mount NFS")
	}
	if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "this node cannot mount NFS: it has no mount.nfs") {
		t.Errorf("without the program: %v", err)
	}
	program := func(script string) {
		if err := os.WriteFile(filepath.Join(bin, nfsProgram), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("echo access denied by server; exit 32\n")
	if _, err := m.Mount(t.Context(), pod, "v"); err == nil ||
		!strings.HasSuffix(err.Error(), `MountVolume.SetUp failed for volume "v" : mount.nfs server:/export: exit status 32: access denied by server`) {
		t.Errorf("refused: %v", err)
	}
	ready := filepath.Join(bin, "ready")
	if err := unix.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	program("echo > " + ready + "; exec sleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.Mount(ctx, pod, "v")
		done <- err
	}()
	if _, err := os.ReadFile(ready); err != nil { // once the program runs
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a server that hangs: %v", err)
	}
	if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
		t.Errorf("left behind: %v", err)
	}
	program("exec mount -t tmpfs none \"$2\"\n")
	if dir := set(t, m, pod); !mounted(t, dir) {
		t.Error("not mounted")
	}
	set(t, m, pod)
	if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
		t.Errorf("left behind: %v", err)
	}
}
