package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/trace"
)

// Make carries out the steps of RunPodSandbox (see runSandbox) but the last: it does not clear away
// what a failure leaves.
func (b *Sandbox) Make(ctx context.Context) error {
	if err := os.MkdirAll(b.root, 0o711); err != nil {
		return err
	}
	failpoint.At("sandbox-folder")
	if err := disk.Save(b.recordPath(), b.rec); err != nil {
		return err
	}
	failpoint.At("sandbox-recorded")
	if err := b.files(ctx); err != nil {
		return err
	}
	failpoint.At("sandbox-files")
	if err := b.makeNamespaces(ctx); err != nil {
		return err
	}
	failpoint.At("sandbox-namespaces")
	ready := Status{Phase: phaseReady}
	if b.Networks {
		at, err := b.env.Network.Setup(ctx, b.Pod())
		if err != nil {
			return err
		}
		ready.Network = &at
		if err := b.takeDNS(at.DNS); err != nil {
			return err
		}
		failpoint.At("sandbox-network")
	}
	if b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD {
		if err := b.startInit(ctx); err != nil {
			return err
		}
		ready.PIDNS = true
		failpoint.At("sandbox-init")
	}
	if err := b.update(func(st *Status) { *st = ready }); err != nil {
		return err
	}
	failpoint.At("sandbox-ready")
	return nil
}

// shareSize is the size of what a pod's containers share: /dev/shm, with the size it has in every
// container runtime, and in the same space the files of /etc.
const shareSize = 64 << 20

// files writes the files that containers see in /etc, and makes their /dev/shm.
func (b *Sandbox) files(ctx context.Context) (err error) {
	_, span := trace.Start(ctx, "cri: sandbox files")
	defer func() { _ = trace.End(span, err) }()
	if err := os.MkdirAll(b.state, 0o711); err != nil {
		return err
	}
	host, err := b.hostname()
	if err != nil {
		return err
	}
	resolv, err := resolvConf(b.Config.GetDnsConfig())
	if err != nil {
		return err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := mountShare(b.shareDir()); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"hostname": []byte(host + "\n"), "resolv.conf": resolv, "hosts": hosts} {
		path := b.etcFile(name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		if err := os.Lchown(path, b.Owner(), b.Owner()); err != nil {
			return err
		}
	}
	if b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return makeShm(b.shmDir(), b.Owner())
}

// mountShare is mount.Tmpfs without the check of mountinfo, because the folder is new. What
// containers write there has its own size limit: otherwise it would take space in the run
// directory that the runtime's state needs.
func mountShare(dir string) error {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	data := fmt.Sprintf("mode=711,size=%d", shareSize)
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

func makeShm(dir string, owner int) error {
	if err := os.Mkdir(dir, 0o1777); err != nil {
		return err
	}
	if err := unix.Chmod(dir, 0o1777); err != nil { // regardless of the umask
		return fmt.Errorf("chmod %s: %w", dir, err)
	}
	return os.Lchown(dir, owner, owner)
}

// hostname returns the pod's hostname, or the machine's on the host network.
func (b *Sandbox) hostname() (string, error) {
	if b.Networks && b.Config.GetHostname() != "" {
		return b.Config.GetHostname(), nil
	}
	return os.Hostname()
}

// makeNamespaces makes and pins the sandbox's namespaces and configures them.
func (b *Sandbox) makeNamespaces(ctx context.Context) (err error) {
	_, span := trace.Start(ctx, "cri: namespaces")
	defer func() { _ = trace.End(span, err) }()
	ks := kinds(b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions())
	if u := b.UsernsOptions(); u != nil {
		return netns.CreateOwned(b.nsDir(), ks, idMap(u.GetUids(), u.GetGids()), b.setUpNamespaces)
	}
	if len(ks) == 0 {
		return nil
	}
	return netns.Create(b.nsDir(), ks, b.setUpNamespaces)
}

// setUpNamespaces runs inside the namespaces.
func (b *Sandbox) setUpNamespaces() error {
	host, err := b.hostname()
	if err != nil {
		return err
	}
	if b.Networks {
		if err := unix.Sethostname([]byte(host)); err != nil {
			return fmt.Errorf("set hostname %q: %w", host, err)
		}
		if err := defaultSysctls(b.Config.GetLinux().GetSysctls()); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.Config.GetLinux().GetSysctls())) {
		if err := b.setSysctl(name, b.Config.GetLinux().GetSysctls()[name]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Sandbox) setSysctl(name, value string) error {
	set := func() error { return netns.SetSysctl(name, value) }
	// In a user namespace, only its root may set the sysctls of the IPC namespace.
	if ns, _, _ := sysctl.GetNamespace(name); b.Owner() == 0 || ns != sysctl.IPCNamespace {
		return set()
	}
	return netns.As(b.Owner(), set)
}

// defaultSysctls lets unprivileged programs ping, and bind ports below 1024, in a pod with its
// own network. containerd has the same defaults.
func defaultSysctls(asked map[string]string) error {
	for _, d := range [][2]string{
		{"net.ipv4.ping_group_range", "0 2147483647"},
		{"net.ipv4.ip_unprivileged_port_start", "0"},
	} {
		if _, ok := asked[d[0]]; ok {
			continue
		}
		if err := netns.SetSysctl(d[0], d[1]); err != nil {
			return err
		}
	}
	return nil
}
