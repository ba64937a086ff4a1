package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type secChange func(*runtimeapi.LinuxContainerSecurityContext)

func secured(name, script string, change secChange) *runtimeapi.ContainerConfig {
	cfg := containerConfig(name, "sh", "-c", script)
	if change != nil {
		change(cfg.Linux.SecurityContext)
	}
	return cfg
}

func number(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }

// TestSecurityContext runs a script for each setting and checks what it sees.
func TestSecurityContext(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) { testSecurityContext(t, n.pod()) })
}

func testSecurityContext(t *testing.T, p *pod) {
	profile := filepath.Join(p.dir, "profile.json")
	p.must(os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64"],
		"syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}`), 0o600))
	const caps = `grep CapBnd /proc/self/status | cut -f2`
	for name, c := range map[string]struct {
		script string
		change secChange
		want   string
	}{
		"default-caps": {caps, nil, "00000000a80425fb"},
		"drop-all": {caps, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
		}, "0000000000000000"},
		"drop-all-add": {caps, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_ADMIN"}}
		}, "0000000000001000"},
		"ambient": {`grep CapAmb /proc/self/status | cut -f2; grep CapEff /proc/self/status | cut -f2`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.Capabilities = number(1000), &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"NET_BIND_SERVICE"}}
		}, "0000000000000400\n0000000000000400"},
		"not-ambient": {`grep CapEff /proc/self/status | cut -f2`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.Capabilities = number(1000), &runtimeapi.Capability{AddCapabilities: []string{"NET_BIND_SERVICE"}}
		}, "0000000000000000"},
		"filter":       {`grep Seccomp: /proc/self/status | cut -f2`, nil, "2"},
		"filter-works": {`unshare -U true 2>&1 | grep -o 'not permitted'`, nil, "not permitted"},
		"unconfined": {`grep Seccomp: /proc/self/status | cut -f2`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		}, "0"},
		"localhost": {`mkdir /x 2>&1 | grep -o 'No space left'`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: profile}
		}, "No space left"},
		"no-new-privs": {`grep NoNewPrivs /proc/self/status | cut -f2`, nil, "1"},
		"new-privs":    {`grep NoNewPrivs /proc/self/status | cut -f2`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.NoNewPrivs = false }, "0"},
		"user":         {`id -u; id -g; id -G`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = number(1000) }, "1000\n1000\n1000 29"},
		"user-group": {`id -u; id -g; id -G`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup, s.SupplementalGroups = number(1000), number(7), []int64{8}
		}, "1000\n7\n7 8 29"},
		"user-strict": {`id -G`, func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroups, s.SupplementalGroupsPolicy = number(1000), []int64{8}, runtimeapi.SupplementalGroupsPolicy_Strict
		}, "1000 8"},
		"username":       {`id -un`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "user" }, "user"},
		"unknown-number": {`id -u; id -g`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = number(4242) }, "4242\n0"},
		"readonly":       {`touch /x 2>&1 | grep -o 'Read-only'; touch /dev/shm/x && echo shm`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }, "Read-only\nshm"},
		"masked":         {`cat /proc/kcore | wc -c; cat /proc/timer_list | wc -c; echo 1 > /proc/sys/kernel/sysrq || echo ro`, nil, "0\n0\nro"},
		"masked-asked":   {`cat /proc/version | wc -c`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.MaskedPaths = []string{"/proc/version"} }, "0"},
		"readonly-asked": {`touch /home/x 2>&1 | grep -o Read-only; touch /x && echo w`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyPaths = []string{"/home"} }, "Read-only\nw"},
		"sys-readonly":   {`touch /sys/fs/cgroup/pids/x /sys/kernel/x 2>/dev/null || echo ro`, nil, "ro"},
		"devices":        {`mknod /tmp/vda b 254 0; cat /tmp/vda 2>&1 | grep -o 'not permitted'; echo x > /dev/null; head -c1 /dev/zero | wc -c`, nil, "not permitted\n1"},
		"privileged":     {`grep Seccomp: /proc/self/status | cut -f2; ls -d /dev/vda; touch /proc/sys/kernel/pid_max && echo rw`, func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }, "0\n/dev/vda\nrw"},
	} {
		out, st := p.output(secured(name, c.script, c.change))
		if got := strings.TrimSpace(out); got != c.want {
			t.Errorf("%s: %q, want %q (stderr %q)", name, got, c.want, logText(t, st.GetLogPath(), "stderr"))
		}
	}
}

func TestSecurityErrorsAreClear(t *testing.T) {
	p := newNode(t).pod()
	for name, c := range map[string]struct {
		change secChange
		want   string
	}{
		"user":  {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nosuchuser" }, "unable to find user nosuchuser"},
		"group": {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsGroup = number(1) }, "without runAsUser"},
		"cap": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NOSUCH"}}
		}, `unknown capability "NOSUCH"`},
		"profile": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such"}
		}, "seccomp profile"},
	} {
		_, err := p.run.CreateContainer(t.Context(), p.id, secured(name, "true", c.change), p.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestMounts(t *testing.T) {
	p := newNode(t).pod()
	host := filepath.Join(p.dir, "vol")
	p.must(os.MkdirAll(filepath.Join(host, "sub"), 0o777))
	p.must(os.WriteFile(filepath.Join(host, "file"), []byte("data"), 0o644))
	cfg := containerConfig("m", "sh", "-c", `cat /a/file; echo x > /a/sub/w; touch /ro/x || echo ro; ls -d /new; pwd; cat /etc/hosts | wc -l`)
	cfg.WorkingDir = "/made/for/me"
	cfg.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/a/sub", HostPath: filepath.Join(p.dir, "vol", "sub")},
		{ContainerPath: "/a", HostPath: host},
		{ContainerPath: "/ro", HostPath: host, Readonly: true, RecursiveReadOnly: true},
		{ContainerPath: "/new", HostPath: filepath.Join(p.dir, "made", "by", "us")},
		{ContainerPath: "/etc/hosts", HostPath: filepath.Join(host, "file"), MountOptions: []string{"nosuid"}},
	}
	out, st := p.output(cfg)
	if want := "dataro\n/new\n/made/for/me\n0\n"; out != want {
		t.Errorf("%q, want %q (%s)", out, want, logText(t, st.GetLogPath(), "stderr"))
	}
	if doc, err := os.ReadFile(filepath.Join(host, "sub", "w")); err != nil || string(doc) != "x\n" {
		t.Errorf("%q, %v", doc, err)
	}
	cfg = containerConfig("shared", "true")
	cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/a", HostPath: host, Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}}
	if _, err := p.run.CreateContainer(t.Context(), p.id, cfg, p.cfg); err == nil || !strings.Contains(err.Error(), "not a shared mount") {
		t.Errorf("a propagation that cannot work: %v", err)
	}
}

func TestSandboxSettings(t *testing.T) {
	p := newNode(t).pod(func(c *runtimeapi.PodSandboxConfig) {
		c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"a.local", "b.local"}, Options: []string{"ndots:5"}}
		c.Linux.Sysctls = map[string]string{"net.core.somaxconn": "777", "kernel.shm_rmid_forced": "1"}
	})
	out, _ := p.output(containerConfig("s", "sh", "-c", `cat /etc/resolv.conf /proc/sys/net/core/somaxconn /proc/sys/kernel/shm_rmid_forced; hostname; df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2`))
	want := "search a.local b.local\nnameserver 10.0.0.10\noptions ndots:5\n777\n1\n" + p.cfg.Hostname + "\n64\n"
	if out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestSysctlsOfTheMachineAreRefused: a pod may only set those of its own namespaces.
func TestSysctlsOfTheMachineAreRefused(t *testing.T) {
	n := newNode(t)
	host := func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE }
	ipc := func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE }
	own := func(*runtimeapi.NamespaceOption) {}
	for name, tc := range map[string]struct {
		in   func(*runtimeapi.NamespaceOption)
		want string
	}{
		"vm.swappiness":            {own, `sysctl "vm.swappiness" is not in a separate kernel namespace`},
		"user.max_user_namespaces": {own, `sysctl "user.max_user_namespaces" is not in a separate kernel namespace`},
		"net/core/somaxconn":       {host, `sysctl "net/core/somaxconn" is not allowed in the host's Net namespace`},
		"kernel.domainname":        {host, `sysctl "kernel.domainname" is not allowed in the host's UTS namespace`},
		"kernel.sem":               {ipc, `sysctl "kernel.sem" is not allowed in the host's IPC namespace`},
	} {
		cfg := n.podConfig(func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{name: "1"}
			tc.in(c.Linux.SecurityContext.NamespaceOptions)
		})
		if _, err := n.run.RunPodSandbox(t.Context(), cfg, ""); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostNamespaces(t *testing.T) {
	n := newNode(t)
	host := func(o *runtimeapi.NamespaceOption) {
		o.Network, o.Pid, o.Ipc = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
	}
	p := n.pod(func(c *runtimeapi.PodSandboxConfig) { host(c.Linux.SecurityContext.NamespaceOptions) })
	cfg := containerConfig("h", "sh", "-c", `for k in net pid ipc uts; do readlink /proc/self/ns/$k; done`)
	host(cfg.Linux.SecurityContext.NamespaceOptions)
	out, _ := p.output(cfg)
	var want strings.Builder
	for _, k := range []string{"net", "pid", "ipc", "uts"} {
		s, err := os.Readlink("/proc/self/ns/" + k)
		n.must(err)
		want.WriteString(s + "\n")
	}
	if out != want.String() {
		t.Errorf("%q, want %q", out, want.String())
	}
	// A process that the first one left behind must not outlive the container.
	cfg = containerConfig("straggler", "sh", "-c", "sleep 4321 & exit 0")
	host(cfg.Linux.SecurityContext.NamespaceOptions)
	id := p.start(cfg)
	n.waitExit(id)
	c, err := n.container(id)
	n.must(err)
	<-c.Cleaned()
	n.eachProcess(func(pid int, cmdline string) {
		if strings.Contains(cmdline, "4321") {
			t.Errorf("left: %d %s", pid, cmdline)
		}
	})
}
