package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/test/disks"
	"wherry.dev/test/images"
)

// failsWith runs `wherry up` on a fresh instance and expects one clear line.
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
	c.failsWith("--apiserver-arg: secure-port cannot be set here: use --secure-port of the node", c.upCommand("--apiserver-arg=secure-port=1"))
	c.failsWith("--runtime-config switches off /v1/pods, which is needed for the kubelet; add /v1=true", c.upCommand("--apiserver-arg=runtime-config=/v1/pods=false"))
	c.failsWith("unknown api groups example.com/v1", c.upCommand("--apiserver-arg=runtime-config=example.com/v1=true"))
	c.failsWith("--controller-manager-arg: --node-monitor-grace-period must be greater than 0, not 0s", c.upCommand("--controller-manager-arg=node-monitor-grace-period=0s"))
	c.failsWith("--kubelet-arg: port cannot be set here: use --kubelet-port", c.upCommand("--kubelet-arg=port=1"))
	c.failsWith("--kubelet-arg: kubelet configuration: cpuManagerPolicy (--cpu-manager-policy): unknown policy", c.upCommand("--kubelet-arg=cpu-manager-policy=fast"))
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

// A flag may name anything. What is not a regular file used to block its program for ever, or was
// read without end.
func TestOddFilesOfFlagsAreRefused(t *testing.T) {
	c := newCluster(t)
	pipe, folder := filepath.Join(t.TempDir(), "pipe"), t.TempDir()
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	none := []string{"--container-runtime-endpoint", "unix://" + filepath.Join(folder, "none"), "--root-dir", c.data, "--kubeconfig", filepath.Join(folder, "none")}
	for command, flags := range map[string][]string{
		"apiserver --cert-dir " + c.data: {
			"client-ca-file", "requestheader-client-ca-file", "tls-cert-file", "tls-private-key-file", "etcd-cafile", "etcd-certfile", "etcd-keyfile",
			"kubelet-certificate-authority", "kubelet-client-certificate", "kubelet-client-key", "service-account-signing-key-file", "service-account-key-file",
		},
		"kubelet " + strings.Join(none, " "): {
			"config", "client-ca-file", "tls-cert-file", "tls-private-key-file", "kubeconfig", "bootstrap-kubeconfig", "image-credential-provider-config",
		},
		"scheduler": {"config", "kubeconfig"},
		"cri":       {"config"},
	} {
		for _, flag := range flags {
			for _, odd := range []string{pipe, folder, "/dev/zero"} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				args := append(strings.Fields(command), "--"+flag, odd)
				if flag == "image-credential-provider-config" {
					args = append(args, "--image-credential-provider-bin-dir", folder)
				}
				c.failsWith(odd, c.command(ctx, args...))
				cancel()
			}
		}
	}
	c.failsWith("it is not a directory", c.command(t.Context(), append([]string{"kubelet", "--config-dir", "/dev/zero"}, none...)...))
	if left, err := os.ReadDir(c.data); len(left) > 0 {
		t.Errorf("left in the data dir: %v, %v", left, err)
	}
}

// smallDisk gives the instance a disk of its own.
func (c *cluster) smallDisk(size string) {
	c.t.Helper()
	c.ownDisk(func() error { return unix.Mount("tmpfs", c.data, "tmpfs", 0, "size="+size) })
}

// ownDisk mounts something at the data dir for the rest of the test.
func (c *cluster) ownDisk(mount func() error) {
	c.t.Helper()
	if err := os.MkdirAll(c.data, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := mount(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.dumpLog() // it is on that disk
		}
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

// A disk that fills up later stops nothing: new objects are refused, what frees room is not, and
// neither the daemon nor a pod ends. A daemon that is then killed starts again.
func TestFullDiskStopsNothing(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("400m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	c.create(busybox("goner"))
	before := c.await("before", "ready", ready)
	c.await("goner", "ready", ready)
	pid := c.pid()
	fill := filepath.Join(c.data, "fill")
	if err := disks.Fill(fill); err != nil {
		t.Fatal(err)
	}
	c.wantFull()
	c.delete("goner")
	if now := c.pid(); now != pid {
		t.Errorf("the daemon was %d and is %d", pid, now)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if err := disks.Fill(filepath.Join(c.data, "more")); err != nil {
		t.Fatal(err)
	}
	c.up()
	c.wantFull()
	c.exec("before", "true")
	c.awaitPressure(v1.ConditionTrue) // otherwise the later pod could come before the node reports it, and be refused
	for _, f := range []string{fill, filepath.Join(c.data, "more")} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	c.create(busybox("after"))
	c.await("after", "ready", ready)
	now := c.get("before").Status.ContainerStatuses[0]
	if was := before.Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != 0 {
		t.Errorf("was %s, is %+v", was.ContainerID, now)
	}
}

// A disk may not keep what it has promised. Then etcd fails, and nothing else: pods keep running,
// containers that end are restarted, and once there is room the node recovers by itself, in the
// same process.
func TestFailedEtcdLeavesThePods(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("400m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	before := c.await("before", "ready", ready)
	pid := c.pid()
	fill := filepath.Join(c.data, "fill")
	c.endEtcd(fill)
	if _, err := c.try("kubectl", "get", "pods"); err == nil || !strings.Contains(err.Error(), "etcd has stopped") {
		t.Errorf("get pods: %v", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for c.tryCreate() != nil {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGQUIT) // its stacks go to the log, which is shown
			waitGone(t, pid)
			t.Fatalf("no room is found again: %v", c.tryCreate())
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.create(busybox("after"))
	c.await("after", "ready", ready)
	now := c.get("before").Status.ContainerStatuses[0]
	if was := before.Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != 0 || c.pid() != pid {
		t.Errorf("was %s in %d, is %+v in %d", was.ContainerID, pid, now, c.pid())
	}
}

// A node that is killed after its etcd has failed on a full disk must not open the data again until
// there is room: it says so, waits, and nobody is told to remove what is not damaged.
func TestStartOnAFullDiskWaitsForRoom(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("400m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("before"))
	before := c.await("before", "ready", ready)
	fills := []string{filepath.Join(c.data, "fill"), filepath.Join(c.data, "more")}
	c.endEtcd(fills[0])
	pid := c.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if err := disks.Fill(fills[1]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	up := c.command(ctx, append([]string{"up", "--detach"}, c.flags...)...)
	says, err := up.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(says); lines.Scan(); {
		said = append(said, lines.Text())
		if !strings.Contains(lines.Text(), "waiting for ") {
			continue
		}
		if strings.Contains(lines.Text(), "start empty") {
			t.Error("the data are called damaged")
		}
		for _, f := range fills {
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
		}
		fills = nil
	}
	// What etcd's files held may be room enough; then it does not wait.
	if err := up.Wait(); err != nil || !strings.Contains(said[len(said)-1], "is Ready") {
		t.Fatalf("%v: %s", err, strings.Join(said, "\n"))
	}
	for _, f := range fills {
		if err := os.Remove(f); err != nil {
			t.Error(err)
		}
	}
	now := c.await("before", "ready", ready).Status.ContainerStatuses[0]
	if was := before.Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != 0 {
		t.Errorf("was %s, is %+v", was.ContainerID, now)
	}
}

// endEtcd fills the disk and makes it break its promise of room, and writes statuses until etcd can
// take no more.
func (c *cluster) endEtcd(fill string) {
	c.t.Helper()
	err := errors.Join(disks.Fill(fill), disks.TakeHeld(filepath.Join(c.data, "etcd")), disks.Fill(fill))
	if err != nil {
		c.t.Fatal(err)
	}
	nodes := c.client.CoreV1().Nodes()
	for i := range 1000 {
		patch := fmt.Sprintf(`{"status":{"nodeInfo":{"osImage":"%d%s"}}}`, i, strings.Repeat("x", 20<<10))
		_, err := nodes.Patch(c.t.Context(), c.flags[1], types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err == nil && i%100 == 99 { // room that was still left behind the log, and room that was freed elsewhere
			err = disks.Fill(fill)
		}
		if err != nil {
			c.t.Logf("%d statuses, and then %v", i, err)
			return
		}
	}
	c.t.Fatal("etcd does not fail")
}

// wantFull checks that nothing can be created on a full disk.
func (c *cluster) wantFull() {
	c.t.Helper()
	if err := c.tryCreate(); err == nil || !strings.Contains(err.Error(), "the disk of the cluster's data is full") {
		c.t.Errorf("create on a full disk: %v", err)
	}
}

func (c *cluster) tryCreate() error {
	_, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(c.t.Context(),
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}}, metav1.CreateOptions{})
	return err
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
