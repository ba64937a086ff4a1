package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet"
	"wherry.dev/test/disks"
	"wherry.dev/test/images"
)

// left fails the test for everything of the instance that is still on the machine.
func (c *cluster) left(id string) {
	c.t.Helper()
	for _, l := range leftovers(c.t, c, id) {
		c.t.Errorf("left behind: %s", l)
	}
}

// TestDownsAtOnce: the second used to take the first for the daemon and kill it halfway; a third
// found no files any more and left bridge, table and cgroups behind.
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

// TestDownWithoutFiles: whatever bears the instance's name is removed even if no file names the
// instance.
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
	c.must("down", "--purge") // of something that was never there
	c.left(id)
}

// aloneID returns the instance ID of a runtime alone; tests of other checkouts have others.
func aloneID() string { return fmt.Sprintf("e%x", os.Getpid()&0xffffff) }

// alone starts `wherry cri` on the instance's folders.
func (c *cluster) alone(args ...string) (stop func()) {
	c.t.Helper()
	var log bytes.Buffer
	cmd := c.command(context.Background(), append([]string{"cri", "--instance-id", aloneID(), "--pod-cidr", c.flags[7]}, args...)...)
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

// TestImagesBesideARuntimeAlone: `wherry image` used to say that `wherry cri` had to be asked,
// and there was no way to ask it.
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

// TestDownOfARuntimeAlone: the data used to be deleted under containers that kept running.
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
		c.left(aloneID())
		stop()
	}
}

// container starts one through the CRI, which runs until it is stopped.
func (c *cluster) container(name string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	rt, _, err := kubelet.DialRuntime(ctx, "unix://"+filepath.Join(c.run, "cri.sock"), "", patience)
	if err != nil {
		c.t.Fatal(err)
	}
	pod := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, LogDirectory: filepath.Join(c.data, "log"),
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

// TestDownClearsWhatEnds: the volumes of a pod that was ending used to stay until the next start.
// Those of a pod that will run again stay with it.
func TestDownClearsWhatEnds(t *testing.T) {
	t.Parallel()
	needsOwnRuntime(t)
	c := startCluster(t)
	var stays *v1.Pod
	for _, name := range []string{"goes", "stays"} {
		c.create(onDisk(name, "echo here >> /data/file; trap '' TERM; touch /set; while true; do sleep 1; done", whenSet))
		stays = c.await(name, "ready", ready)
	}
	c.kubectl("delete", "pod", "goes", "--wait=false", "--grace-period=3600")
	c.awaitEvent("goes", "Killing")
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(c.data, "kubelet", "pods", "*", "volumes", "*", "data", "file"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if n := len(files()); n != 2 {
		t.Fatalf("%d files", n)
	}
	c.must("down")
	if left := files(); len(left) != 1 || !strings.Contains(left[0], string(stays.UID)) {
		t.Errorf("left: %v", left)
	}
	c.up()
	c.await("stays", "ready in another container", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].ContainerID != stays.Status.ContainerStatuses[0].ContainerID
	})
	if got := c.exec("stays", "cat", "/data/file"); got != "here\nhere\n" {
		t.Errorf("the pod that goes on has %q in its volume", got)
	}
	c.await("goes", "gone", gone)
}

// TestDownOnAFullDisk: it says what it does in plain words, and nothing else.
func TestDownOnAFullDisk(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.ext4Disk(600 << 20)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("a"))
	c.await("a", "ready", ready)
	if err := disks.Fill(filepath.Join(c.data, "most")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	full, stop := make(chan error, 1), make(chan struct{})
	go func() { full <- keepFull(filepath.Join(c.data, "fill"), stop) }() // what `down` frees is taken again
	said, err := c.command(ctx, "down").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, said)
	}
	close(stop)
	if err := <-full; err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(said)) {
		if !strings.HasPrefix(line, "wherry: stopping ") {
			t.Errorf("it says %q", line)
		}
	}
}

// keepFull takes all free room on a disk, again and again, until stop is closed.
func keepFull(path string, stop <-chan struct{}) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for chunk := make([]byte, 4096); ; {
		if _, err := f.Write(chunk); err == nil {
			continue
		} else if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		select {
		case <-stop:
			return f.Close()
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// A start may be stopped at any moment. It ends soon, and if nothing ran before, nothing is left
// but the data; from what earlier ones left, the next one carries on.
func TestStopInEachPhaseOfAStart(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	for after := time.Duration(0); after <= 600*time.Millisecond; after += 50 * time.Millisecond {
		c.started = true
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := c.command(ctx, append([]string{"up"}, c.flags...)...)
		var says bytes.Buffer
		cmd.Stdout, cmd.Stderr = &says, &says
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if ctx.Err() != nil {
			t.Fatalf("stopped after %v it does not end: %s", after, &says)
		}
		cancel()
		if err == nil { // it was Ready: then it stays up for the next start
			c.must("down")
		}
		for _, l := range leftovers(t, c, c.instanceID()) {
			if l != "folder "+c.data {
				t.Errorf("stopped after %v (%v: %s): left behind: %s", after, err, &says, l)
			}
		}
	}
	c.up()
}
