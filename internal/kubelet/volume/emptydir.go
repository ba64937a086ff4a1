package volume

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/mount"
)

// emptyDir is a directory, a tmpfs for medium Memory, or huge pages.
type emptyDir struct {
	placed
	m *Mounter
}

func (m *Mounter) emptyDirs() kind { return emptyDir{"kubernetes.io~empty-dir", m} }

func (emptyDir) is(s *spec) bool {
	return s.pv == nil && (s.own.EmptyDir != nil || *s.own == v1.VolumeSource{})
}

func (e emptyDir) setUp(_ context.Context, s *spec, dir string) (time.Time, error) {
	src := s.own.EmptyDir
	if src == nil {
		src = &v1.EmptyDirVolumeSource{}
	}
	mode := fs.FileMode(0o777)
	switch src.Medium {
	case v1.StorageMediumDefault:
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return time.Time{}, err
		}
	case v1.StorageMediumMemory:
		if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
			return time.Time{}, err
		}
		if err := mount.Tmpfs(dir, mode, e.m.tmpfsSize(s.pod, cmp.Or(src.SizeLimit, new(resource.Quantity)))); err != nil {
			return time.Time{}, err
		}
		mode |= fs.ModeSticky // the default for a tmpfs; upstream does not set it
	default:
		if err := mountHugePages(s.pod, src.Medium, dir); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, ownVolume(dir, mode, fsGroup(s.pod)) // open to every user of the pod
}

// mountHugePages mounts an emptyDir of huge pages, of the size given by its medium or requested by its pod.
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

// tmpfsSize returns the size limit of a tmpfs of the pod: the pod's memory limit or else the node's allocatable memory,
// and at most the volume's own limit. 0 means unknown, which leads to half of the machine's memory.
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
