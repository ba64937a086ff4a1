package volume

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/kubelet/disks"
)

// fibre is a disk at Fibre Channel, for a pod by its own spec or by a PersistentVolume. The node's adapters see it.
type fibre struct {
	placed
	m *Mounter
}

const (
	fibreFolder = "kubernetes.io~fc"
	fibrePlugin = "fc"
)

func (m *Mounter) fibreVolumes() kind { return fibre{fibreFolder, m} }

func (fibre) source(s *spec) *v1.FCVolumeSource {
	if s.pv != nil {
		return s.pv.Spec.FC
	}
	return s.own.FC
}

func (f fibre) is(s *spec) bool { return f.source(s) != nil }

func (fibre) ready(dir string) (bool, error) { return diskReady(dir) }

func (f fibre) tearDown(ctx context.Context, dir string) error {
	return f.m.leaveDisk(ctx, fibrePlugin, dir)
}

func (f fibre) setUp(ctx context.Context, s *spec, dir string) (time.Time, error) {
	src := f.source(s)
	disk := &disks.Fibre{WWNs: src.TargetWWNs, LUN: ptr.Deref(src.Lun, 0), WWIDs: src.WWIDs}
	if err := disk.Check(); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, f.m.useDisk(ctx, dir, &diskUse{
		spec: s, plugin: fibrePlugin, id: fmt.Sprint(disk.WWNs, disk.LUN, disk.WWIDs), volume: attachments.FCName(src),
		is:       diskRecord{Fibre: disk},
		readOnly: s.readOnly || src.ReadOnly, fsType: src.FSType,
		connect: func(ctx context.Context, r *diskRecord, _ func() error) (string, error) {
			return f.m.disks.FindFibre(ctx, r.Fibre)
		},
	})
}
