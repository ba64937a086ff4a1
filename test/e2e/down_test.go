package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet"
	"wherry.dev/test/images"
)

// left fails the test for everything of the instance that is on the machine.
func (c *cluster) left(id string) {
	c.t.Helper()
	for _, l := range leftovers(c.t, c, id) {
		c.t.Errorf("left behind: %s", l)
	}
}

// TestDownsAtOnce: the second took the first for the daemon and killed it halfway; a
// third found no files any more and left bridge, table and cgroups.
func TestDownsAtOnce(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	id := c.instanceID()
	for _, name := range []string{"a", "b", "c"} {
		c.create(busybox(name))
		c.await(name, "ready", ready)
	}
	c.started = false
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := c.try("down", "--purge"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.left(id)
}

// TestDownWithoutFiles: what bears the instance's name goes although no file tells of it.
func TestDownWithoutFiles(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	id := c.instanceID()
	c.create(busybox("a"))
	c.await("a", "ready", ready)
	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if err := os.RemoveAll(c.data + "/cri"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"instance.json", "lock"} {
		if err := os.Remove(filepath.Join(c.data, f)); err != nil {
			t.Fatal(err)
		}
	}
	c.started = false
	c.must("down", "--purge")
	c.left(id)
	c.must("down", "--purge") // of what was never there
	c.left(id)
}

// alone is a `wherry cri` on the instance's folders.
func (c *cluster) alone(args ...string) (stop func()) {
	c.t.Helper()
	var log bytes.Buffer
	cmd := c.command(context.Background(), append([]string{"cri", "--instance-id", "e2e", "--pod-cidr", c.flags[7]}, args...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() { _ = cmd.Process.Kill(); <-ended }
	c.t.Cleanup(func() {
		stop()
		if _, err := c.try("down", "--purge"); err != nil {
			c.t.Error(err)
		}
		if c.t.Failed() {
			c.t.Logf("wherry cri:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(patience); !fileExists(filepath.Join(c.run, "control.sock")); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			c.t.Fatalf("wherry cri ended:\n%s", log.String())
		default:
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("wherry cri does not serve:\n%s", log.String())
		}
	}
	return stop
}

// TestImagesBesideARuntimeAlone: `wherry image` was told to talk to `wherry cri`, and
// there was no way to.
func TestImagesBesideARuntimeAlone(t *testing.T) {
	c := newCluster(t)
	c.alone()
	file := filepath.Join(filepath.Dir(c.data), "busybox.tar")
	if err := images.SaveBusybox(file); err != nil {
		t.Fatal(err)
	}
	if out := c.must("image", "import", file); !strings.Contains(out, "imported docker.io/library/busybox") {
		t.Errorf("import: %s", out)
	}
	if out := c.must("image", "list"); !strings.Contains(out, "docker.io/library/busybox") {
		t.Errorf("list: %s", out)
	}
	c.must("image", "export", "busybox:1.36", "-o", file+".copy")
	c.must("image", "remove", "busybox:1.36")
	c.must("image", "import", file+".copy")
	if _, err := c.try("image", "pull", "127.0.0.1:1/nothing:here"); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("pull: %v", err)
	}
	c.must("image", "pulls")
	if out := c.must("image", "prune"); !strings.Contains(out, "removed docker.io/library/busybox") {
		t.Errorf("prune: %s", out)
	}
}

// TestDownOfARuntimeAlone: the data was deleted under containers that went on running.
func TestDownOfARuntimeAlone(t *testing.T) {
	c := newCluster(t)
	stop := c.alone()
	file := filepath.Join(filepath.Dir(c.data), "busybox.tar")
	if err := images.SaveBusybox(file); err != nil {
		t.Fatal(err)
	}
	c.must("image", "import", file)
	for _, running := range []bool{true, false} {
		if !running {
			stop = c.alone()
			c.must("image", "import", file)
		}
		c.container("lone")
		if !running {
			stop()
		}
		c.must("down", "--purge")
		c.left("e2e")
		stop()
	}
}

// container starts one by the CRI, which runs until somebody ends it.
func (c *cluster) container(name string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	rt, _, err := kubelet.DialRuntime(ctx, "unix://"+filepath.Join(c.run, "cri.sock"), "", patience)
	if err != nil {
		c.t.Fatal(err)
	}
	pod := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, LogDirectory: filepath.Join(c.data, "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	sandbox, err := rt.RunPodSandbox(ctx, pod, "")
	if err != nil {
		c.t.Fatal(err)
	}
	id, err := rt.CreateContainer(ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "busybox:1.36"},
		Command: []string{"sleep", "100000"}, LogPath: name + ".log", Linux: &runtimeapi.LinuxContainerConfig{},
	}, pod)
	if err == nil {
		err = rt.StartContainer(ctx, id)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
