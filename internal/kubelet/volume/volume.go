// Package volume sets up pods' volumes and takes them down. Every operation is idempotent and keeps
// no state in memory except tokens and certificates: what is mounted is read from the kernel, what
// is written from the disk.
//
// The layout below a pod's directory is the usual one:
// volumes/kubernetes.io~<kind>/<name>, volume-subpaths/<name>/<container>/<index>.
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
)

// Objects looks up configMaps and secrets.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, error)
	Secret(namespace, name string) (*v1.Secret, error)
}

// Tokens issues service account tokens that are bound to a pod.
type Tokens interface {
	Token(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (token string, refreshAt time.Time, err error)
}

// Mounter sets up and clears volumes.
type Mounter struct {
	Dirs criconfig.Dirs
	// Objects returns a view whose look-ups end with the context.
	Objects func(ctx context.Context) Objects
	Tokens  Tokens
	// Bundles, if not nil, returns the cluster's trust bundles.
	Bundles func(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error)
	// Certificates, if not nil, has the certificates of pods.
	Certificates *CertificateSource
	// Node facts for the downward API.
	NodeName    string
	Allocatable func() v1.ResourceList
}

// kindDirs are the directories of the kinds of volumes.
const (
	dirEmpty     = "kubernetes.io~empty-dir"
	dirConfigMap = "kubernetes.io~configmap"
	dirSecret    = "kubernetes.io~secret"
	dirDownward  = "kubernetes.io~downward-api"
	dirProjected = "kubernetes.io~projected"
)

// Path returns the path of a pod's volume on the host.
func (m *Mounter) Path(pod *v1.Pod, v *v1.Volume) string {
	dir := ""
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path
	case v.ConfigMap != nil:
		dir = dirConfigMap
	case v.Secret != nil:
		dir = dirSecret
	case v.DownwardAPI != nil:
		dir = dirDownward
	case v.Projected != nil:
		dir = dirProjected
	default:
		dir = dirEmpty
	}
	return filepath.Join(m.Dirs.Volumes(pod.UID), dir, v.Name)
}

// Mount sets up a volume, or updates its content. refreshAt, if not zero, is when to call Mount
// again even if no object changed.
func (m *Mounter) Mount(ctx context.Context, pod *v1.Pod, name string) (refreshAt time.Time, err error) {
	v := find(pod, name)
	if v == nil {
		return time.Time{}, fmt.Errorf("volume %q is not in the pod's spec", name)
	}
	dir := m.Path(pod, v)
	switch {
	case v.HostPath != nil:
		return time.Time{}, checkHostPath(v.HostPath)
	case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		return m.mountContent(ctx, pod, v, dir)
	case v.EmptyDir != nil, v.VolumeSource == v1.VolumeSource{}:
		return time.Time{}, m.mountEmptyDir(pod, v, dir)
	default:
		return time.Time{}, fmt.Errorf("volumes of this kind (%s) are not supported by this node", kindOf(v))
	}
}

func find(pod *v1.Pod, name string) *v1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// kindOf names the kind of a volume that is refused.
func kindOf(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return "persistentVolumeClaim"
	case v.Ephemeral != nil:
		return "ephemeral"
	case v.CSI != nil:
		return "csi"
	case v.NFS != nil:
		return "nfs"
	case v.ISCSI != nil:
		return "iscsi"
	case v.FC != nil:
		return "fc"
	default:
		return "other"
	}
}

// mountHugePages mounts an emptyDir of huge pages, of the size given by its medium or requested by
// its pod.
func mountHugePages(pod *v1.Pod, medium v1.StorageMedium, dir string) error {
	if medium != v1.StorageMediumHugePages && !strings.HasPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)) {
		return fmt.Errorf("unknown storage medium %q", medium)
	}
	size, err := criconfig.PageSize(pod, medium)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return mount.HugePages(dir, size)
}

// mountEmptyDir creates an emptyDir: a directory, a tmpfs for medium Memory, or huge pages.
func (m *Mounter) mountEmptyDir(pod *v1.Pod, v *v1.Volume, dir string) error {
	src := v.EmptyDir
	if src == nil {
		src = &v1.EmptyDirVolumeSource{}
	}
	mode := fs.FileMode(0o777)
	switch src.Medium {
	case v1.StorageMediumDefault:
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	case v1.StorageMediumMemory:
		if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
			return err
		}
		if err := mount.Tmpfs(dir, mode, m.tmpfsSize(pod, cmp.Or(src.SizeLimit, new(resource.Quantity)))); err != nil {
			return err
		}
		mode |= fs.ModeSticky // the default for a tmpfs; upstream does not set it
	default:
		if err := mountHugePages(pod, src.Medium, dir); err != nil {
			return err
		}
	}
	return ownVolume(dir, mode, fsGroup(pod)) // open to every user of the pod
}

// tmpfsSize returns the size limit of a tmpfs of the pod: the pod's memory limit or else the node's
// allocatable memory, and at most the volume's own limit. 0 means unknown, which leads to half of
// the machine's memory.
func (m *Mounter) tmpfsSize(pod *v1.Pod, limit *resource.Quantity) int64 {
	allocatable := m.Allocatable()
	size := allocatable.Memory().Value()
	for _, less := range []int64{criconfig.MemoryLimit(pod), limit.Value()} {
		if less > 0 && (size <= 0 || less < size) {
			size = less
		}
	}
	return size
}

func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// Left reports whether anything of the pod's volumes is still on the node.
func (m *Mounter) Left(uid types.UID) bool {
	for _, path := range []string{m.Dirs.Volumes(uid), m.Dirs.Subpaths(uid), m.Dirs.EtcHosts(uid)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return m.wrote(uid)
}

// Clear unmounts and removes all volumes of a pod, but nothing that hostPath volumes point to. It
// also removes what containers wrote into our files: if they filled the disk that way, other pods
// would be evicted for it.
func (m *Mounter) Clear(uid types.UID) error {
	subpaths, err := filepath.Glob(filepath.Join(m.Dirs.Subpaths(uid), "*", "*", "*"))
	if err != nil {
		return err
	}
	volumes, err := filepath.Glob(filepath.Join(m.Dirs.Volumes(uid), "*", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range append(subpaths, volumes...) {
		errs = append(errs, mount.Unmount(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if m.Certificates != nil {
		m.Certificates.Forget(uid)
	}
	return errors.Join(m.clearWritten(uid), safepath.RemoveAll(m.Dirs.Subpaths(uid)), safepath.RemoveAll(m.Dirs.Volumes(uid)))
}
