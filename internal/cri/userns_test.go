package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/mount"
)

// eachRuntime runs a test with every OCI runtime that we drive.
func eachRuntime(t *testing.T, test func(t *testing.T, n *node)) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			test(t, newNode(t, func(c *Config) { c.DefaultRuntime = name }))
		})
	}
}

const firstID = 200000

func mapped(length uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: firstID, Length: length}}
}

func podUserns(length uint32) *runtimeapi.UserNamespace {
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapped(length), Gids: mapped(length)}
}

func withUserns(c *runtimeapi.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = podUserns(65536)
}

// needUserns skips the test if the file system of the images has no ID-mapped mounts.
func (n *node) needUserns() {
	n.t.Helper()
	if !n.translates() {
		n.t.Skip("needs ID-mapped mounts, which the file system of the images does not have")
	}
}

// TestUserNamespace: root in the pod is an ordinary user on the machine, and does not notice.
func TestUserNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		n.needUserns()
		p := n.pod(withUserns)
		volume := filepath.Join(n.dir, "vol")
		n.must(os.Mkdir(volume, 0o755))
		n.must(os.WriteFile(filepath.Join(volume, "mine"), []byte("data\n"), 0o600))
		n.must(os.WriteFile(filepath.Join(n.dir, "one-file"), []byte("single\n"), 0o600))
		cfg := containerConfig("u", "sh", "-c", `cat /proc/self/uid_map /proc/self/gid_map | tr -s ' ';
			id -u; stat -c %u:%g /bin/busybox / /etc/hosts /made /vol/mine /dev/shm;
			cat /vol/mine /single && touch /vol/new /etc/new && ping -c1 -W2 127.0.0.1 >/dev/null && echo pinged;
			hostname; mount -t tmpfs x /mnt 2>/dev/null || echo no mount; sleep 1000`)
		cfg.WorkingDir = "/made"
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = podUserns(65536)
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/vol", HostPath: volume, UidMappings: mapped(65536), GidMappings: mapped(65536)},
			{ContainerPath: "/single", HostPath: filepath.Join(n.dir, "one-file"), UidMappings: mapped(65536), GidMappings: mapped(65536)},
		}
		id := p.start(cfg)
		want := fmt.Sprintf(" 0 %d 65536\n 0 %d 65536\n0\n%sdata\nsingle\npinged\n%s\nno mount\n", firstID, firstID, strings.Repeat("0:0\n", 6), p.cfg.GetHostname())
		n.waitLog(id, "no mount")
		if got := logText(t, n.status(id).GetLogPath(), "stdout"); got != want {
			t.Errorf("got\n%s\nwant\n%s(stderr %s)", got, want, logText(t, n.status(id).GetLogPath(), "stderr"))
		}
		if got := n.exec(id, "sh", "-c", "id -u; cat /proc/self/uid_map | tr -s ' '"); got != fmt.Sprintf("0\n 0 %d 65536\n", firstID) {
			t.Errorf("exec: %q", got)
		}
		c, err := n.container(id)
		n.must(err)
		var st unix.Stat_t
		n.must(unix.Stat(fmt.Sprintf("/proc/%d", c.PID()), &st))
		if st.Uid != firstID {
			t.Errorf("the container's root is user %d of the machine", st.Uid)
		}
		n.must(unix.Stat(filepath.Join(volume, "new"), &st))
		if st.Uid != 0 {
			t.Errorf("a file in the volume belongs to %d", st.Uid)
		}
		if disk.Exists(filepath.Join(n.cfg.layout().ContainerState(), id, "volumes")) {
			t.Error("the translated mounts are still there")
		}
	})
}

// waitLog waits for a line of a container's log.
func (n *node) waitLog(id, line string) {
	n.t.Helper()
	path := n.status(id).GetLogPath()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	n.must(err)
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_MODIFY)
	n.must(err)
	buf := make([]byte, 4096)
	for {
		runs := n.status(id).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
		doc, err := os.ReadFile(path) // read afterwards: a container that has exited has written everything
		n.must(err)
		if strings.Contains(string(doc), " "+line+"\n") {
			return
		}
		if !runs {
			n.t.Fatalf("container %s ended without saying %q: %s", id, line, doc)
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30000)
		if errors.Is(err, unix.EINTR) {
			continue // because a child exited, say
		}
		n.must(err)
		if ready == 0 {
			n.t.Fatalf("container %s does not say %q: %s", id, line, doc)
		}
		_, err = unix.Read(fd, buf)
		n.must(err)
	}
}

// TestSharedPIDsInAUserNamespace: the pod's init is in the user namespace, too.
func TestSharedPIDsInAUserNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		n.needUserns()
		p := n.pod(withUserns, func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		})
		cfg := containerConfig("u", "sh", "-c", `cat /proc/1/comm; stat -c %u /proc/1; readlink /proc/self/ns/user`)
		cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		out, st := p.output(cfg)
		if !strings.HasPrefix(out, "init\n65534\nuser:") {
			t.Errorf("%q (%s)", out, logText(t, st.GetLogPath(), "stderr"))
		}
	})
}

func TestUserNamespacesThatCannotBe(t *testing.T) {
	n := newNode(t)
	two := append(mapped(10), &runtimeapi.IDMapping{ContainerId: 10, HostId: 5, Length: 1})
	for name, c := range map[string]struct {
		options *runtimeapi.UserNamespace
		want    string
	}{
		"two":       {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: two, Gids: two}, "want exactly one"},
		"none":      {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}, "want exactly one"},
		"differ":    {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapped(10), Gids: mapped(11)}, "differ"},
		"no length": {podUserns(0), "has length 0"},
		"too long":  {podUserns(1<<32 - 1), "past the last ID"},
		"container": {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_CONTAINER}, "unsupported user namespace mode"},
		"node":      {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE, Uids: mapped(1)}, "does not take mappings"},
	} {
		cfg := n.podConfig(func(p *runtimeapi.PodSandboxConfig) {
			p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = c.options
		})
		_, err := n.run.RunPodSandbox(t.Context(), cfg, "")
		if err == nil || !strings.Contains(err.Error(), c.want) || status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	n.needUserns()
	p := n.pod(withUserns)
	cfg := containerConfig("other", "true")
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = podUserns(1000)
	if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "differs from that of its sandbox") {
		t.Errorf("a container in another namespace: %v", err)
	}
}

// TestUserNamespaceOnTheHostNetwork: KEP-5607.
func TestUserNamespaceOnTheHostNetwork(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		onHost := func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE }
		n.needUserns()
		p := n.pod(withUserns, func(c *runtimeapi.PodSandboxConfig) { onHost(c.Linux.SecurityContext.NamespaceOptions) })
		cfg := containerConfig("c", "sh", "-c", `readlink /proc/self/ns/net; ls -d /sys/class/net/lo; touch /sys/x 2>&1 | grep -o Read-only; cat /proc/self/uid_map | tr -s ' '`)
		onHost(cfg.Linux.SecurityContext.NamespaceOptions)
		own, err := os.Readlink("/proc/self/ns/net")
		n.must(err)
		out, st := p.output(cfg)
		if want := fmt.Sprintf("%s\n/sys/class/net/lo\nRead-only\n 0 %d 65536\n", own, firstID); out != want {
			t.Errorf("%q, want %q (%s)", out, want, logText(t, st.GetLogPath(), "stderr"))
		}
		bad := n.podConfig(withUserns, func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		})
		if _, err := n.run.RunPodSandbox(t.Context(), bad, ""); err == nil || !strings.Contains(err.Error(), "PID or IPC") {
			t.Errorf("the machine's PID namespace: %v", err)
		}
	})
}

// TestUserNamespaceSettings: a pod's other settings work in a user namespace, too.
func TestUserNamespaceSettings(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		n.needUserns()
		p := n.pod(withUserns, func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.core.somaxconn": "777", "kernel.shm_rmid_forced": "1", "kernel.domainname": "dom"}
		})
		for name, c := range map[string]struct {
			script string
			change secChange
			want   string
		}{
			"sysctls":   {`cd /proc/sys; cat net/core/somaxconn kernel/shm_rmid_forced kernel/domainname`, nil, "777\n1\ndom"},
			"user":      {`id -u; touch /tmp/x; stat -c %u /tmp/x`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = number(1000) }, "1000\n1000"},
			"read-only": {`touch /x 2>&1 | grep -o Read-only`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }, "Read-only"},
			"net admin": {`ip link set lo mtu 1400 && cat /sys/class/net/lo/mtu`, func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}}
			}, "1400"},
			"masked": {`cat /proc/version | wc -c; touch /proc/sys/net/core/somaxconn 2>&1 | grep -o Read-only`, func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/version"}, []string{"/proc/sys"}
			}, "0\nRead-only"},
			"unmasked": {`grep -c ' /proc/' /proc/self/mountinfo`, func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.NamespaceOptions.UsernsOptions = podUserns(65536) // ProcMount: Unmasked
			}, "0"},
			"privileged": {`mount -t tmpfs x /tmp && touch /tmp/x && echo mounted; ls /dev/vda; head -c1 /dev/vda | wc -c`, func(s *runtimeapi.LinuxContainerSecurityContext) {
				s.Privileged, s.NoNewPrivs = true, false
			}, "mounted\n/dev/vda\n0"},
		} {
			out, st := p.output(secured(strings.ReplaceAll(name, " ", "-"), c.script, c.change))
			if got := strings.TrimSpace(out); got != c.want {
				t.Errorf("%s: %q, want %q (stderr %q)", name, got, c.want, logText(t, st.GetLogPath(), "stderr"))
			}
		}
		ro := filepath.Join(n.dir, "ro")
		n.must(mount.Tmpfs(ro, 0o755, 0)) // nosuid and nodev, like the kubelet's secrets
		readOnly := containerConfig("ro-volume", "sh", "-c", "touch /v/x 2>&1 | grep -o Read-only")
		readOnly.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", HostPath: ro, Readonly: true, UidMappings: mapped(65536), GidMappings: mapped(65536)}}
		if out, _ := p.output(readOnly); out != "Read-only\n" {
			t.Errorf("a read-only volume: %q", out)
		}
		n.must(mount.Unmount(ro))
		cfg := containerConfig("tty", "sh", "-c", "test -t 1 && echo a terminal; echo x > /dev/tty && stat -c %u $(tty)")
		cfg.Tty, cfg.Stdin = true, true
		if out, _ := p.output(cfg); !strings.HasPrefix(strings.ReplaceAll(out, "\r", ""), "a terminal\nx\n0\n") {
			t.Errorf("with a terminal: %q", out)
		}
	})
}
