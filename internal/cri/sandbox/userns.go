package sandbox

import (
	"context"
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

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/rootfs"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
)

// UsernsOptions returns the options of the pod's own user namespace (hostUsers: false, KEP-127),
// or nil if the pod uses the machine's.
func (b *Sandbox) UsernsOptions() *runtimeapi.UserNamespace {
	return OwnUserns(b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions())
}

// OwnUserns returns the options of a user namespace of the pod's own, or nil if it uses the machine's.
func OwnUserns(o *runtimeapi.NamespaceOption) *runtimeapi.UserNamespace {
	if u := o.GetUsernsOptions(); u != nil && u.GetMode() == runtimeapi.NamespaceMode_POD {
		return u
	}
	return nil
}

// CheckUserns refuses mappings that cannot work: Kubernetes gives a pod one range, for users and
// groups alike, that begins with root.
func CheckUserns(o *runtimeapi.NamespaceOption) error {
	u := o.GetUsernsOptions()
	switch {
	case u == nil || u.GetMode() == runtimeapi.NamespaceMode_NODE:
		if len(u.GetUids()) > 0 || len(u.GetGids()) > 0 {
			return crierror.Invalid("user namespace mode NODE does not take mappings")
		}
		return nil
	case u.GetMode() != runtimeapi.NamespaceMode_POD:
		return crierror.Invalid("unsupported user namespace mode: %s; want POD or NODE", u.GetMode())
	}
	if o.GetPid() == runtimeapi.NamespaceMode_NODE || o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		return crierror.Invalid("a pod with a user namespace cannot use the host's PID or IPC namespace")
	}
	for kind, ms := range map[string][]*runtimeapi.IDMapping{"uids": u.GetUids(), "gids": u.GetGids()} {
		if err := CheckMapping(kind, ms); err != nil {
			return err
		}
		if ms[0].GetContainerId() != 0 {
			return crierror.Invalid("user namespace: container ID 0 is not in the mapping of %s", kind)
		}
	}
	if !slices.EqualFunc(u.GetUids(), u.GetGids(), func(a, b *runtimeapi.IDMapping) bool { return proto.Equal(a, b) }) {
		return crierror.Invalid("user namespace: the mappings of uids and gids differ")
	}
	return nil
}

// CheckMapping refuses any mapping but one range. kind is uids or gids.
func CheckMapping(kind string, ms []*runtimeapi.IDMapping) error {
	if len(ms) != 1 {
		return crierror.Invalid("user namespace: %d mappings of %s, want exactly one", len(ms), kind)
	}
	m := ms[0]
	if m.GetLength() == 0 {
		return crierror.Invalid("user namespace: the mapping of %s has length 0", kind)
	}
	for _, first := range []uint32{m.GetHostId(), m.GetContainerId()} {
		if first+m.GetLength()-1 < first || first+m.GetLength()-1 == 1<<32-1 {
			return crierror.Invalid("user namespace: the mapping of %s goes past the last ID", kind)
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

// Owner returns the host's ID of root in the sandbox.
func (b *Sandbox) Owner() int {
	if u := b.UsernsOptions(); u != nil {
		return int(u.GetUids()[0].GetHostId())
	}
	return 0
}

// CanTranslate reports whether pods can have user namespaces: the kernel must allow them, and the
// file system of the images' folder must support ID-mapped mounts.
func CanTranslate(ctx context.Context, images string) bool {
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1, Size: 1}}
	userns, err := netns.OpenUser(netns.IDMap{UIDs: one, GIDs: one})
	if err == nil {
		defer func() { _ = userns.Close() }()
		err = mount.CanTranslate(images, userns)
	}
	if err != nil {
		klog.FromContext(ctx).Info("User namespaces are not supported here", "reason", err)
	}
	return err == nil
}

// CheckReach requires that everybody can reach a folder: root of a user namespace is an ordinary
// user on the machine, and its root file system is mounted there.
func CheckReach(dir string) error {
	for d := dir; ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if st.Mode()&0o001 == 0 {
			return crierror.Precondition("a pod with a user namespace cannot access %s; run chmod o+x %s", d, d)
		}
		if d == "/" {
			return nil
		}
	}
}

// openUserns opens the sandbox's user namespace. It returns nil if that is the machine's.
func (b *Sandbox) openUserns() (*os.File, error) {
	if b.UsernsOptions() == nil {
		return nil, nil
	}
	return os.Open(netns.Path(b.nsDir(), netns.User))
}

// LockedOptions returns the options of the mount that contains path. The runtime must repeat them
// when it makes a read-only copy in a user namespace; runc 1.1 does not look them up itself.
func (b *Sandbox) LockedOptions(path string) ([]string, error) {
	if b.UsernsOptions() == nil {
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

// FolderVolume returns the source for a folder or file of the host. A pod with a user namespace
// gets a copy of the mount, with translated owners if it asks for that, because it may not be
// allowed to reach the original.
func (b *Sandbox) FolderVolume(m *runtimeapi.Mount, place string) (string, error) {
	src, err := rootfs.Source(m.GetHostPath())
	if err != nil {
		return "", err
	}
	if err := rootfs.CheckPropagation(src, m.GetPropagation()); err != nil {
		return "", err
	}
	if len(m.GetUidMappings()) == 0 && b.UsernsOptions() == nil {
		return src, nil
	}
	st, err := os.Stat(src)
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		err = os.MkdirAll(place, 0o711)
	} else {
		err = disk.WriteFile(place, nil, 0o600)
	}
	if err != nil {
		return "", err
	}
	var userns *os.File
	if len(m.GetUidMappings()) > 0 {
		if userns, err = netns.OpenUser(idMap(m.GetUidMappings(), m.GetGidMappings())); err != nil {
			return "", err
		}
		defer func() { _ = userns.Close() }()
	}
	return place, mount.Copy(src, place, userns, m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_PRIVATE)
}

// Overlay mounts folders, with translated owners for pods with a user namespace. scratch lies in
// a container's volumeDir, so that what a crash leaves mounted there is unmounted before anything
// is deleted: it holds the image's layers.
func (b *Sandbox) Overlay(dst string, lower []string, upper, work, scratch string) error {
	userns, err := b.openUserns()
	if err != nil {
		return err
	}
	if userns == nil {
		return mount.Overlay(dst, lower, upper, work)
	}
	defer func() { _ = userns.Close() }()
	copies, err := mount.CopyAll(lower, scratch, userns)
	if err != nil {
		return err
	}
	failpoint.At("layers-translated")
	if err := mount.Overlay(dst, copies, upper, work); err != nil {
		return err
	}
	return mount.RemoveCopies(scratch)
}
