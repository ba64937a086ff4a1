package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/trace"
)

// shareSize is the size of what a pod's containers share: /dev/shm, with the size it has in every
// container runtime, and in the same space the files of /etc.
const shareSize = 64 << 20

// RunPodSandbox makes a sandbox and returns when it is ready. A repeated call joins the one in
// flight, or returns the sandbox of one that has finished.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := checkSandboxConfig(req.GetConfig()); err != nil {
		return nil, err
	}
	if _, err := s.handler(req.GetRuntimeHandler()); err != nil {
		return nil, invalid("%w", err)
	}
	if ownUserns(req.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()) != nil {
		if !s.translates() {
			return nil, precondition("pods cannot have user namespaces here: the file system of %s has no ID-mapped mounts, or the kernel none", s.images.Dir())
		}
		if err := checkReach(s.cfg.State); err != nil {
			return nil, err
		}
	}
	m := req.GetConfig().GetMetadata()
	ctx = trace.WithPod(ctx, m.GetUid())
	id, err := s.join(ctx, sandboxKey(m), req, func(ctx context.Context) (string, error) {
		return s.runSandbox(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func checkSandboxConfig(c *runtimeapi.PodSandboxConfig) error {
	if c.GetMetadata() == nil {
		return invalid("the sandbox has no metadata")
	}
	if err := checkUserns(c.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	for _, p := range c.GetPortMappings() {
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return invalid("host port %d: %w", p.GetHostPort(), err)
			}
		}
	}
	if _, err := bandwidth(c.GetAnnotations()); err != nil {
		return invalid("%w", err)
	}
	return checkSysctls(c.GetLinux().GetSysctls(), c.GetLinux().GetSecurityContext().GetNamespaceOptions())
}

// sysctlKinds are the namespaces whose sysctls a pod may set.
var sysctlKinds = map[sysctl.Namespace]netns.Kind{
	sysctl.NetNamespace: netns.Net, sysctl.IPCNamespace: netns.IPC, sysctl.UTSNamespace: netns.UTS,
}

// checkSysctls refuses sysctls that would change the machine, whoever asks. Those of a user
// namespace would need a process in it.
func checkSysctls(all map[string]string, o *runtimeapi.NamespaceOption) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, err := netns.SysctlPath(name); err != nil {
			return invalid("%w", err)
		}
		ns, _, _ := sysctl.GetNamespace(name)
		kind, known := sysctlKinds[ns]
		if !known {
			return invalid("sysctl %q is not in a separate kernel namespace", name)
		}
		if !slices.Contains(kinds(o), kind) {
			return invalid("sysctl %q is not allowed in the host's %s namespace", name, ns)
		}
	}
	return nil
}

// runSandbox takes these steps:
//
//  1. write the record, by which what a crash leaves from here on is found and removed
//  2. make files and the shared memory
//  3. make and pin the namespaces; set hostname and sysctls
//  4. connect the network
//  5. start an init for the pod's PID namespace, if the pod shares one
//  6. write the status: ready
func (s *Server) runSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (id string, err error) {
	ctx, span := trace.Start(ctx, "cri: run sandbox")
	defer func() { _ = trace.End(span, err) }()
	if old := s.sandboxByKey(sandboxKey(req.GetConfig().GetMetadata())); old != nil {
		return reuseSandbox(old, req)
	}
	rec := sandboxRecord{
		ID: newID(), Boot: s.boot, Handler: req.GetRuntimeHandler(), CreatedAt: nanos(time.Now()),
		OwnCgroup: req.GetConfig().GetLinux().GetCgroupParent() == "",
	}
	rec.Config.m = proto.CloneOf(req.GetConfig())
	b := s.newSandbox(rec)
	b.op.Lock()
	defer b.op.Unlock()
	if err := s.makeSandbox(ctx, b); err != nil {
		if cerr := s.clearSandbox(context.WithoutCancel(ctx), b); cerr != nil {
			err = errors.Join(err, cerr) // the next start finds it again
		}
		return "", fmt.Errorf("run sandbox of pod %s/%s: %w", b.config.GetMetadata().GetNamespace(), b.config.GetMetadata().GetName(), err)
	}
	s.mu.Lock()
	s.sandboxes[b.id] = b
	s.mu.Unlock()
	s.emit(b.id, b, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.emit(b.id, b, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if b.current().PIDNS {
		return b.id, s.watchInit(b)
	}
	return b.id, nil
}

func (s *Server) sandboxByKey(key string) *sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, b := range s.sandboxes {
		if b.key == key {
			return b
		}
	}
	return nil
}

// reuseSandbox answers a repeated call whose first attempt succeeded without the caller noticing.
func reuseSandbox(b *sandbox, req *runtimeapi.RunPodSandboxRequest) (string, error) {
	if b.ready() && proto.Equal(b.config, req.GetConfig()) && b.rec.Handler == req.GetRuntimeHandler() {
		return b.id, nil
	}
	return "", alreadyExists("%s already exists as %s; remove it, or use a higher attempt", b.key, b.id)
}

func (s *Server) makeSandbox(ctx context.Context, b *sandbox) error {
	if err := os.MkdirAll(b.root, 0o711); err != nil {
		return err
	}
	failpoint("sandbox-folder")
	if err := saveRecord(b.recordPath(), b.rec); err != nil {
		return err
	}
	failpoint("sandbox-recorded")
	if err := s.sandboxFiles(ctx, b); err != nil {
		return err
	}
	failpoint("sandbox-files")
	if err := b.makeNamespaces(ctx); err != nil {
		return err
	}
	failpoint("sandbox-namespaces")
	ready := sandboxStatus{Phase: phaseReady}
	if b.networks {
		at, err := s.network.Setup(ctx, b.pod())
		if err != nil {
			return err
		}
		ready.Network = &at
		if err := b.takeDNS(at.DNS); err != nil {
			return err
		}
		failpoint("sandbox-network")
	}
	if b.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD {
		if err := s.startInit(ctx, b); err != nil {
			return err
		}
		ready.PIDNS = true
		failpoint("sandbox-init")
	}
	if err := b.update(func(st *sandboxStatus) { *st = ready }); err != nil {
		return err
	}
	failpoint("sandbox-ready")
	return nil
}

// sandboxFiles writes the files that containers see in /etc, and makes their /dev/shm.
func (s *Server) sandboxFiles(ctx context.Context, b *sandbox) (err error) {
	_, span := trace.Start(ctx, "cri: sandbox files")
	defer func() { _ = trace.End(span, err) }()
	if err := os.MkdirAll(b.state, 0o711); err != nil {
		return err
	}
	host, err := b.hostname()
	if err != nil {
		return err
	}
	resolv, err := resolvConf(b.config.GetDnsConfig())
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
		if err := os.Lchown(path, b.owner(), b.owner()); err != nil {
			return err
		}
	}
	if b.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return makeShm(b.shmDir(), b.owner())
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
		return fmt.Errorf("mode of %s: %w", dir, err)
	}
	return os.Lchown(dir, owner, owner)
}

// hostname returns the pod's hostname, or the machine's on the host network.
func (b *sandbox) hostname() (string, error) {
	if b.networks && b.config.GetHostname() != "" {
		return b.config.GetHostname(), nil
	}
	return os.Hostname()
}

// resolvConf returns resolv.conf with the pod's DNS configuration, or the machine's if it has none.
func resolvConf(c *runtimeapi.DNSConfig) ([]byte, error) {
	if namesNoDNS(c) {
		doc, err := os.ReadFile("/etc/resolv.conf")
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return doc, err
	}
	var b bytes.Buffer
	line := func(keyword string, values []string) {
		if len(values) > 0 {
			b.WriteString(keyword)
			for _, v := range values {
				b.WriteString(" " + v)
			}
			b.WriteByte('\n')
		}
	}
	line("search", c.GetSearches())
	for _, s := range c.GetServers() {
		line("nameserver", []string{s})
	}
	line("options", c.GetOptions())
	return b.Bytes(), nil
}

// makeNamespaces makes and pins the sandbox's namespaces and configures them.
func (b *sandbox) makeNamespaces(ctx context.Context) (err error) {
	_, span := trace.Start(ctx, "cri: namespaces")
	defer func() { _ = trace.End(span, err) }()
	ks := kinds(b.config.GetLinux().GetSecurityContext().GetNamespaceOptions())
	if u := b.usernsOptions(); u != nil {
		return netns.CreateOwned(b.nsDir(), ks, idMap(u.GetUids(), u.GetGids()), b.setUpNamespaces)
	}
	if len(ks) == 0 {
		return nil
	}
	return netns.Create(b.nsDir(), ks, b.setUpNamespaces)
}

// setUpNamespaces runs inside the namespaces.
func (b *sandbox) setUpNamespaces() error {
	host, err := b.hostname()
	if err != nil {
		return err
	}
	if b.networks {
		if err := unix.Sethostname([]byte(host)); err != nil {
			return fmt.Errorf("set hostname %q: %w", host, err)
		}
		if err := defaultSysctls(b.config.GetLinux().GetSysctls()); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.config.GetLinux().GetSysctls())) {
		if err := b.setSysctl(name, b.config.GetLinux().GetSysctls()[name]); err != nil {
			return err
		}
	}
	return nil
}

func (b *sandbox) setSysctl(name, value string) error {
	set := func() error { return netns.SetSysctl(name, value) }
	// In a user namespace, only its root may set the sysctls of the IPC namespace.
	if ns, _, _ := sysctl.GetNamespace(name); b.owner() == 0 || ns != sysctl.IPCNamespace {
		return set()
	}
	return netns.As(b.owner(), set)
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

// unmountShare unmounts the shared folder, and what older versions of Wherry mounted.
func (b *sandbox) unmountShare() error {
	return errors.Join(mount.Unmount(b.shareDir()), mount.Unmount(filepath.Join(b.state, "shm")))
}
