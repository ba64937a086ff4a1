package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"wherry.dev/test/images"
)

// failsWith runs `wherry up` on a fresh instance and wants one clear line.
func (c *cluster) failsWith(want string, cmd *exec.Cmd) {
	c.t.Helper()
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	lines := strings.Split(text, "\n")
	last := lines[len(lines)-1]
	if err == nil || !strings.HasPrefix(last, "wherry: ") || !strings.Contains(last, want) {
		c.t.Errorf("want a line with %q and a failure, got %v:\n%s", want, err, text)
	}
}

func (c *cluster) upCommand(args ...string) *exec.Cmd {
	return c.command(c.t.Context(), append(append([]string{"up", "--detach"}, c.flags...), args...)...)
}

func TestWhatIsWrongIsSaidInOneLine(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	unreadable := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(unreadable, []byte("secure-port: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.failsWith("unknown flag: --no-such-flag", c.upCommand("--no-such-flag"))
	c.failsWith("--node-name \"A_B\"", c.upCommand("--node-name", "A_B"))
	c.failsWith("port "+port+" is in use by another program; stop that one, or choose another --secure-port", c.upCommand("--secure-port", port))
	c.failsWith("port "+port+" is in use by another program; stop that one, or choose another --kubelet-port", c.upCommand("--kubelet-port", port))
	c.failsWith("config file "+unreadable, c.upCommand("--config", unreadable))
	c.failsWith("no such file", c.upCommand("--config", unreadable+".missing"))
	c.failsWith("unknown command", c.command(t.Context(), "upp"))

	noTools := c.upCommand()
	noTools.Env = append(noTools.Env, "PATH=/nonexistent")
	c.failsWith("install", noTools)

	noRoot := c.upCommand()
	noRoot.Env = append(noRoot.Env, "HOME=/nonexistent")
	noRoot.SysProcAttr = asNobody()
	copyBinaryFor(t, noRoot)
	c.failsWith("needs root", noRoot)

	for _, left := range []string{filepath.Join(c.data, "etcd"), filepath.Join(c.data, "kubeconfig"), c.run} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("a failed start left %s", left)
		}
	}
}

// smallDisk gives the instance a disk of its own.
func (c *cluster) smallDisk(size string) {
	c.t.Helper()
	if err := os.MkdirAll(c.data, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", c.data, "tmpfs", 0, "size="+size); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		c.purge()
		c.started = false
		if err := unix.Unmount(c.data, 0); err != nil {
			c.t.Errorf("unmount %s: %v", c.data, err)
		}
	})
}

func TestFullDiskIsRefused(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("8m")
	c.failsWith("is full: ", c.upCommand())
}

// A disk that fills up later stops the daemon at the latest when etcd cannot write. The
// containers do not notice, and once there is room it goes on with all that was said to
// be stored.
func TestDiskThatFillsUpLosesNothing(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("400m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	before := c.await("before", "ready", ready)
	fill := filepath.Join(c.data, "fill")
	if err := fillDisk(fill); err != nil {
		t.Fatal(err)
	}
	stored := c.createUntilRefused(strings.Repeat("x", 900<<10))
	c.failsWith("is full: ", c.upCommand())
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	c.up()
	for _, name := range stored {
		if _, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	c.create(busybox("after"))
	c.await("after", "ready", ready)
	if now := c.get("before").Status.ContainerStatuses[0]; now.ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("was %s, is %+v", before.Status.ContainerStatuses[0].ContainerID, now)
	}
}

func fillDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	chunk := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// createUntilRefused creates config maps until the daemon is gone, and returns the names
// of those that it confirmed.
func (c *cluster) createUntilRefused(data string) (stored []string) {
	c.t.Helper()
	for i := range 200 {
		name := fmt.Sprintf("big-%d", i)
		_, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(c.t.Context(),
			&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": data}}, metav1.CreateOptions{})
		if err == nil {
			stored = append(stored, name)
		} else if utilnet.IsConnectionRefused(err) {
			return stored
		}
	}
	c.t.Fatalf("%d objects of %d bytes went onto a full disk", len(stored), len(data))
	return nil
}

func TestSecondDaemonOfTheSameInstanceIsRefused(t *testing.T) {
	c := startCluster(t)
	c.failsWith("already running with --data-dir "+c.data+" (pid "+strconv.Itoa(c.pid())+")", c.upCommand())
}

func TestPodNetworkOfAnotherInstanceIsRefused(t *testing.T) {
	needsOwnRuntime(t)
	c, other := startCluster(t), newCluster(t)
	other.failsWith("choose another --pod-cidr", other.upCommand("--pod-cidr", c.flags[7]))
}

func TestTwoInstancesDoNotTouchEachOther(t *testing.T) {
	a, b := startCluster(t), startCluster(t)
	a.create(busybox("same-name"))
	b.create(busybox("same-name"))
	pa, pb := a.await("same-name", "ready", ready), b.await("same-name", "ready", ready)
	if pa.Status.PodIP == pb.Status.PodIP || pa.Spec.NodeName == pb.Spec.NodeName {
		t.Errorf("%s on %s, %s on %s", pa.Status.PodIP, pa.Spec.NodeName, pb.Status.PodIP, pb.Spec.NodeName)
	}
	a.must("down", "--purge")
	a.started = false
	b.exec("same-name", "true")
	if p := b.get("same-name"); p.Status.ContainerStatuses[0].RestartCount != 0 || !ready(p) {
		t.Errorf("the end of one instance disturbed the other: %s", describe(p))
	}
}
