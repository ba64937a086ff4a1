package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/mount"
)

// TestNamespaceModes: each of network, PID and IPC is the machine's, the pod's or the
// container's, as asked.
func TestNamespaceModes(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		own := func(kind string) string {
			s, err := os.Readlink("/proc/self/ns/" + kind)
			n.must(err)
			return s
		}
		const pod, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE
		for _, c := range []struct {
			net, pid, ipc runtimeapi.NamespaceMode
		}{
			{pod, runtimeapi.NamespaceMode_CONTAINER, pod}, {node, runtimeapi.NamespaceMode_CONTAINER, pod},
			{pod, node, pod}, {pod, pod, pod}, {pod, runtimeapi.NamespaceMode_CONTAINER, node}, {node, pod, node},
		} {
			options := &runtimeapi.NamespaceOption{Network: c.net, Pid: c.pid, Ipc: c.ipc}
			p := n.pod(func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions = options })
			see := func(name string) []string {
				cfg := containerConfig(name, "sh", "-c", "for k in net pid ipc uts; do readlink /proc/self/ns/$k; done; sleep 1000")
				cfg.Linux.SecurityContext.NamespaceOptions = options
				id := p.start(cfg)
				return strings.Fields(n.exec(id, "sh", "-c", "for k in net pid ipc uts; do readlink /proc/1/ns/$k || readlink /proc/self/ns/$k; done"))
			}
			a, b := see("a"), see("b")
			for i, kind := range []string{"net", "pid", "ipc"} {
				mode := []runtimeapi.NamespaceMode{c.net, c.pid, c.ipc}[i]
				host, shared := a[i] == own(kind), a[i] == b[i]
				if host != (mode == node) || shared != (mode != runtimeapi.NamespaceMode_CONTAINER) {
					t.Errorf("%+v: %s of the machine %t, shared %t", c, kind, host, shared)
				}
			}
			if host := a[3] == own("uts"); host != (c.net == node) {
				t.Errorf("%+v: the machine's name %t", c, host)
			}
			n.must(n.run.RemovePodSandbox(t.Context(), p.id))
		}
	})
}

// TestTargetPIDNamespace: a debug container sees the processes of its target alone.
func TestTargetPIDNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		target := p.start(containerConfig("target", "sleep", "4242"))
		p.start(containerConfig("other", "sleep", "5353"))
		cfg := containerConfig("debug", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
		cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: target}
		if out, _ := p.output(cfg); !strings.Contains(out, "sleep 4242") || strings.Contains(out, "5353") {
			t.Errorf("it sees %q", out)
		}
		cfg = containerConfig("late", "true")
		cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: target}
		n.must(n.run.StopContainer(t.Context(), target, 0))
		if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "is not running") {
			t.Errorf("a target that has ended: %v", err)
		}
	})
}

// TestMountPropagation: later mounts show up on the other side as asked.
func TestMountPropagation(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		shared := filepath.Join(n.dir, "shared")
		n.must(mount.Tmpfs(shared, 0o755, 0))
		n.must(unix.Mount("", shared, "", unix.MS_SHARED, ""))
		p := n.pod()
		ids := map[string]string{}
		for name, propagation := range map[string]runtimeapi.MountPropagation{
			"private": runtimeapi.MountPropagation_PROPAGATION_PRIVATE, "slave": runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			"shared": runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
		} {
			n.must(os.MkdirAll(filepath.Join(shared, "from-"+name), 0o755))
			cfg := containerConfig(name, "sleep", "1000")
			cfg.Linux.SecurityContext.Privileged, cfg.Linux.SecurityContext.NoNewPrivs = true, false
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", HostPath: shared, Propagation: propagation}}
			ids[name] = p.start(cfg)
		}
		n.must(mount.Tmpfs(filepath.Join(shared, "later"), 0o755, 0))
		n.must(os.WriteFile(filepath.Join(shared, "later", "file"), nil, 0o644))
		for name, id := range ids {
			got := strings.TrimSpace(n.exec(id, "sh", "-c", "ls /v/later"))
			if want := map[string]string{"private": "", "slave": "file", "shared": "file"}[name]; got != want {
				t.Errorf("%s: the machine's mount shows %q, want %q", name, got, want)
			}
			n.exec(id, "mount", "-t", "tmpfs", "x", "/v/from-"+name)
			if ok, err := mount.Mounted(filepath.Join(shared, "from-"+name)); err != nil || ok != (name == "shared") {
				t.Errorf("%s: the container's mount shows: %t, %v", name, ok, err)
			}
		}
		n.must(n.run.RemovePodSandbox(t.Context(), p.id))
		n.must(mount.UnmountUnder(shared))
	})
}

// TestRecursiveReadOnly: read-only alone leaves mounts below writable.
func TestRecursiveReadOnly(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		dir := filepath.Join(n.dir, "tree")
		n.must(os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
		n.must(mount.Tmpfs(filepath.Join(dir, "sub"), 0o777, 0))
		p := n.pod()
		cfg := containerConfig("c", "sh", "-c", `for d in /plain /plain/sub /rec /rec/sub; do touch $d/x 2>/dev/null && echo $d; done; true`)
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/plain", HostPath: dir, Readonly: true}, {ContainerPath: "/rec", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
		}
		if out, _ := p.output(cfg); out != "/plain/sub\n" {
			t.Errorf("writable: %q", out)
		}
		cfg = containerConfig("no", "true")
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/rec", HostPath: dir, RecursiveReadOnly: true}}
		if _, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "needs a read-only mount") {
			t.Errorf("recursive alone: %v", err)
		}
		n.must(n.run.RemovePodSandbox(t.Context(), p.id))
		n.must(mount.UnmountUnder(dir))
	})
}

// TestDevices: a device appears under its name with its permissions, a folder with everything in
// it.
func TestDevices(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		dir := filepath.Join(n.dir, "devs", "deep")
		n.must(os.MkdirAll(dir, 0o755))
		n.must(unix.Mknod(filepath.Join(dir, "nul"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		n.must(os.Chmod(filepath.Join(dir, "nul"), 0o666)) // root of a user namespace is nobody special here
		for _, owner := range []string{"machine", "own"} {
			if owner == "own" && !n.translates() {
				continue
			}
			p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
				if owner == "own" {
					withUserns(c)
				}
			})
			cfg := containerConfig("c", "sh", "-c", `head -c2 /dev/ro-zero | wc -c; (echo x > /dev/deep/nul) && echo written; (echo x > /dev/loop-c) 2>&1 | grep -o 'not permitted'`)
			cfg.Devices = []*runtimeapi.Device{
				{HostPath: "/dev/zero", ContainerPath: "/dev/ro-zero", Permissions: "r"},
				{HostPath: filepath.Dir(dir), ContainerPath: "/dev", Permissions: "rwm"},
			}
			if disk.Exists("/dev/loop-control") {
				cfg.Devices = append(cfg.Devices, &runtimeapi.Device{HostPath: "/dev/loop-control", ContainerPath: "/dev/loop-c", Permissions: "r"})
			}
			want := "2\nwritten\n"
			if disk.Exists("/dev/loop-control") && owner == "machine" {
				want += "not permitted\n"
			}
			out, st := p.output(cfg)
			if !strings.HasPrefix(out, want) {
				t.Errorf("%s: got %q, want %q (%s)", owner, out, want, logText(t, st.GetLogPath(), "stderr"))
			}
		}
	})
}

// TestResourceLimits: what the kubelet sets ends up in the container's cgroup.
func TestResourceLimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		cfg := containerConfig("c", "sleep", "1000")
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{
			CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, CpusetCpus: "0", CpusetMems: "0",
			MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20, OomScoreAdj: 500,
			HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 0}},
		}
		id := p.start(cfg)
		d, err := cgroup.ReadDetails(n.cgroup(id))
		n.must(err)
		if d.Quota != 50000 || d.Period != 100000 || d.MemoryLimit != 64<<20 || d.SwapLimit != 64<<20 || d.Shares < 500 || d.Shares > 525 {
			t.Errorf("limits: %+v", d)
		}
		if got := n.exec(id, "sh", "-c", "grep Cpus_allowed_list /proc/1/status | cut -f2; cat /proc/1/oom_score_adj"); got != "0\n500\n" {
			t.Errorf("CPUs and OOM score: %q", got)
		}
		cfg = containerConfig("v2", "true")
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{Unified: map[string]string{"memory.high": fmt.Sprint(32 << 20)}}
		id, err = n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg)
		if err == nil { // runc checks it, and the start reports what it refused
			err = n.run.StartContainer(t.Context(), id)
		}
		if n.host.CgroupV2 != (err == nil) || (err != nil && !strings.Contains(err.Error(), "cgroup v")) {
			t.Errorf("settings of cgroup v2: %v", err)
		}
	})
}

// TestSharedProcessNamespace: the pod's init adopts orphans and leaves no zombies.
func TestSharedProcessNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod(sharedPID)
		id := p.start(inSharedPID(containerConfig("c", "sh", "-c", "(sh -c 'sleep 0.01 & exec true'); exec sleep 1000")))
		n.exec(id, "sh", "-c", `until ps -o args | grep -qx 'sleep 1000' && ! ps -o args | grep -q '[0]\.01'; do sleep 0.02; done`)
		if out := n.exec(id, "sh", "-c", "cat /proc/1/comm; grep -h '^State' /proc/[0-9]*/status | grep -c Z || true"); out != "init\n0\n" {
			t.Errorf("%q", out)
		}
	})
}

// TestHugePages: a limit is in force in the hierarchy that has the controller, and one
// that cannot be set is refused.
func TestHugePages(t *testing.T) {
	tree, err := cgroup.System()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := tree.UnifiedDir("/x")
	if err != nil {
		t.Fatal(err)
	}
	if doc, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "cgroup.controllers")); err != nil || !strings.Contains(string(doc), "hugetlb") {
		t.Skip("the v2 tree of this machine does not have the hugetlb controller")
	}
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		cfg := containerConfig("c", "sleep", "1000")
		cfg.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
		id, err := n.run.CreateContainer(t.Context(), p.id, cfg, p.cfg)
		if !n.handlers.all[n.cfg.DefaultRuntime].LimitsHugePages() {
			if err == nil || !strings.Contains(err.Error(), "hugetlb cgroup controller") {
				t.Errorf("a limit that %s cannot set: %v", n.cfg.DefaultRuntime, err)
			}
			return
		}
		n.must(err)
		dir, err := tree.UnifiedDir(n.cgroup(id))
		n.must(err)
		if doc, err := os.ReadFile(filepath.Join(dir, "hugetlb.2MB.max")); err != nil || string(doc) != fmt.Sprintln(4<<20) {
			t.Errorf("limit %q, %v", doc, err)
		}
	})
}
