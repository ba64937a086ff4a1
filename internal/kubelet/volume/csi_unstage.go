package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/mount"
)

// staged is a volume as the node has it.
type staged struct {
	driver, handle string
	files          csiFiles
	device         string // the name of its PersistentVolume, if it is a device
	attached       bool   // somebody attaches it
}

// stagedOn returns the volumes of drivers that the node has, or is about to have.
func stagedOn(dirs criconfig.Dirs) (out []staged, err error) {
	for _, pattern := range []string{filepath.Join("*", "*", volDataFile), filepath.Join(devicesFolder, "*", "data", volDataFile)} {
		all, err := filepath.Glob(filepath.Join(csiRoot(dirs), pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range all {
			data, err := readVolData(filepath.Dir(path))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			s := staged{driver: data[keyDriver], handle: data[keyHandle], attached: data[keyAttachment] != ""}
			s.files = filesOf(dirs, s.driver, s.handle)
			if filepath.Base(filepath.Dir(path)) == "data" {
				s.device = filepath.Base(filepath.Dir(filepath.Dir(path)))
				s.files = deviceFiles(dirs, s.device)
			}
			out = append(out, s)
		}
	}
	return out, nil
}

func (s staged) name() string { return s.driver + " " + s.handle }

func (s staged) folder() string { return s.files.data }

// leave takes a volume of a driver from the node.
func (s staged) leave(ctx context.Context, m *Mounter) error {
	return m.aloneWith(ctx, s.driver, s.handle, func() error {
		data, err := readVolData(s.files.data)
		if errors.Is(err, fs.ErrNotExist) { // it is done
			return nil
		}
		if err != nil {
			return err
		}
		if had, err := s.had(m.Dirs, data); err != nil || had {
			return err
		}
		return m.unstageBy(ctx, s, data)
	})
}

// had reports whether a pod has the volume.
func (s staged) had(dirs criconfig.Dirs, data volData) (bool, error) {
	if s.device == "" {
		return publishedAnywhere(dirs, data)
	}
	links, err := filepath.Glob(filepath.Join(dirs.Pods(), "*", devicesFolder, csiFolder, s.device))
	return len(links) > 0, err
}

func (m *Mounter) unstageBy(ctx context.Context, s staged, data volData) error {
	if _, err := os.Lstat(s.files.staging); errors.Is(err, fs.ErrNotExist) { // the driver was never asked to stage it
		return m.unstaged(s.files)
	}
	if data[keyStaged] != "" { // whatever comes of it, a pod that is to have the volume has it staged again
		delete(data, keyStaged)
		if err := data.write(s.files.data); err != nil {
			return err
		}
	}
	err := m.CSI.Drivers.Call(ctx, s.driver, func(ctx context.Context, n csipb.NodeClient) error {
		can, err := csi.Can(ctx, n)
		if err != nil || !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			return err
		}
		_, err = n.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: s.handle, StagingTargetPath: s.files.staging})
		return err
	})
	if err = unlessUnknown(err, s.files.staging); err != nil {
		return fmt.Errorf("UnmountDevice failed for volume %q : %w", data[keySpecVolID], err)
	}
	listed, err := mount.Listed(s.files.staging)
	if err == nil && listed {
		err = fmt.Errorf("driver %s says that it has unstaged the volume %s, and it is still mounted at %s", s.driver, s.handle, s.files.staging)
	}
	if err != nil {
		return err
	}
	failpoint.At("csi-unstaged")
	return m.unstaged(s.files)
}

// unstaged has the node say that it does not use the volume any more.
func (m *Mounter) unstaged(files csiFiles) error {
	if err := files.remove(); err != nil {
		return err
	}
	m.Attached.report()
	return nil
}
