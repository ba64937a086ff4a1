package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

func TestFullDiskIsRefused(t *testing.T) {
	c := newCluster(t)
	if err := os.MkdirAll(c.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", c.data, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.data, unix.MNT_DETACH) })
	c.failsWith("is full: ", c.upCommand())
}

func TestSecondDaemonOfTheSameInstanceIsRefused(t *testing.T) {
	c := startCluster(t)
	c.failsWith("already running with --data-dir "+c.data+" (pid "+strconv.Itoa(c.pid())+")", c.upCommand())
}

func TestPodNetworkOfAnotherInstanceIsRefused(t *testing.T) {
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
