package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
)

// usernsOptions returns the options of the pod's own user namespace (hostUsers: false, KEP-127),
// or nil if the pod uses the machine's.
func (b *sandbox) usernsOptions() *runtimeapi.UserNamespace {
	return ownUserns(b.config.GetLinux().GetSecurityContext().GetNamespaceOptions())
}

func ownUserns(o *runtimeapi.NamespaceOption) *runtimeapi.UserNamespace {
	if u := o.GetUsernsOptions(); u != nil && u.GetMode() == runtimeapi.NamespaceMode_POD {
		return u
	}
	return nil
}

// checkUserns refuses mappings that cannot work: Kubernetes gives a pod one range, for users and
// groups alike, that begins with root.
func checkUserns(o *runtimeapi.NamespaceOption) error {
	u := o.GetUsernsOptions()
	switch {
	case u == nil || u.GetMode() == runtimeapi.NamespaceMode_NODE:
		if len(u.GetUids()) > 0 || len(u.GetGids()) > 0 {
			return invalid("user namespace mode NODE takes no mappings")
		}
		return nil
	case u.GetMode() != runtimeapi.NamespaceMode_POD:
		return invalid("unsupported user namespace mode: %s; it is POD or NODE", u.GetMode())
	}
	if o.GetPid() == runtimeapi.NamespaceMode_NODE || o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		return invalid("a pod with a user namespace cannot have the machine's PID or IPC namespace")
	}
	for kind, ms := range map[string][]*runtimeapi.IDMapping{"uids": u.GetUids(), "gids": u.GetGids()} {
		if err := checkMapping(kind, ms); err != nil {
			return err
		}
		if ms[0].GetContainerId() != 0 {
			return invalid("user namespace: container ID 0 is not in the mapping of %s", kind)
		}
	}
	if !slices.EqualFunc(u.GetUids(), u.GetGids(), func(a, b *runtimeapi.IDMapping) bool { return proto.Equal(a, b) }) {
		return invalid("user namespace: the mappings of users and groups differ")
	}
	return nil
}

func checkMapping(kind string, ms []*runtimeapi.IDMapping) error {
	if len(ms) != 1 {
		return invalid("user namespace: %d mappings of %s, one is supported", len(ms), kind)
	}
	m := ms[0]
	if m.GetLength() == 0 {
		return invalid("user namespace: the mapping of %s has no length", kind)
	}
	for _, first := range []uint32{m.GetHostId(), m.GetContainerId()} {
		if first+m.GetLength()-1 < first || first+m.GetLength()-1 == 1<<32-1 {
			return invalid("user namespace: the mapping of %s goes past the last ID", kind)
		}
	}
	return nil
}

func idMap(uids, gids []*runtimeapi.IDMapping) netns.IDMap {
	translate := func(ms []*runtimeapi.IDMapping) (out []syscall.SysProcIDMap) {
		for _, m := range ms {
			out = append(out, syscall.SysProcIDMap{ContainerID: int(m.GetContainerId()), HostID: int(m.GetHostId()), Size: int(m.GetLength())})
		}
		return out
	}
	return netns.IDMap{UIDs: translate(uids), GIDs: translate(gids)}
}

func specMapping(ms []*runtimeapi.IDMapping) (out []specs.LinuxIDMapping) {
	for _, m := range ms {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}

// owner returns the host's ID of root in the sandbox.
func (b *sandbox) owner() int {
	if u := b.usernsOptions(); u != nil {
		return int(u.GetUids()[0].GetHostId())
	}
	return 0
}

// probeUserns reports whether pods can have user namespaces: the kernel must allow them, and the
// file system with the images must support ID-mapped mounts.
func (s *Server) probeUserns() bool {
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1, Size: 1}}
	userns, err := netns.OpenUser(netns.IDMap{UIDs: one, GIDs: one})
	if err == nil {
		defer func() { _ = userns.Close() }()
		err = mount.CanTranslate(s.images.Dir(), userns)
	}
	if err != nil {
		klog.InfoS("Pods cannot have user namespaces here", "reason", err)
	}
	return err == nil
}

// checkReach requires that everybody can reach a folder: root of a user namespace is an ordinary
// user on the machine, and its root file system is mounted there.
func checkReach(dir string) error {
	for d := dir; ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if st.Mode()&0o001 == 0 {
			return precondition("a pod with a user namespace cannot get into %s: chmod o+x %s", d, d)
		}
		if d == "/" {
			return nil
		}
	}
}

// openUserns opens the sandbox's user namespace. It returns nil if that is the machine's.
func (b *sandbox) openUserns() (*os.File, error) {
	if b.usernsOptions() == nil {
		return nil, nil
	}
	return os.Open(netns.Path(b.nsDir(), netns.User))
}

// lockedOptions returns the options of the mount that contains path. The runtime must repeat them
// when it makes a read-only copy in a user namespace; runc 1.1 does not look them up itself.
func (b *sandbox) lockedOptions(path string) ([]string, error) {
	if b.usernsOptions() == nil {
		return nil, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", path, err)
	}
	var options []string
	for _, o := range []struct {
		flag int64
		name string
	}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}} {
		if st.Flags&o.flag != 0 {
			options = append(options, o.name)
		}
	}
	return options, nil
}

// checkContainerUserns requires a container to ask for its sandbox's user namespace, or for none
// in particular.
func checkContainerUserns(b *sandbox, cfg *runtimeapi.ContainerConfig) error {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetUsernsOptions() == nil {
		return nil
	}
	if err := checkUserns(o); err != nil {
		return err
	}
	if !proto.Equal(ownUserns(o), b.usernsOptions()) { // two nils are equal
		return invalid("the user namespace of the container differs from that of its sandbox")
	}
	return nil
}
