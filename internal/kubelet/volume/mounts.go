package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/safepath"
)

// ContainerInput is what the mounts of one container instance depend on.
type ContainerInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Attempt   uint32
	// Env expands subPathExpr.
	Env []criconfig.Env
	// Hosts is the content of /etc/hosts; nil keeps the image's own file.
	Hosts []byte
	// Images has the reference that was pulled for each image volume.
	Images map[string]string
	// RecursiveReadOnly: the runtime can make a mount and everything below it read-only.
	RecursiveReadOnly bool
}

// ContainerMounts prepares and returns the mounts of a container: its volumes,
// /etc/hosts and the file for its termination message.
//
// It looks into volumes, and returns soon after the context ends.
func (m *Mounter) ContainerMounts(ctx context.Context, in ContainerInput) ([]*runtimeapi.Mount, error) {
	return call(ctx, &m.calls, in.Pod.UID, mountsOf(in.Container), func() ([]*runtimeapi.Mount, error) { return m.containerMounts(in) })
}

// mountsOf stands, among the volumes of a pod, for those that one container mounts.
func mountsOf(c *v1.Container) string { return "/" + c.Name }

func (m *Mounter) containerMounts(in ContainerInput) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	ownHosts := false
	for i := range in.Container.VolumeMounts {
		vm := &in.Container.VolumeMounts[i]
		ownHosts = ownHosts || vm.MountPath == "/etc/hosts"
		mnt, err := m.volumeMount(in, i, vm)
		if err != nil {
			return nil, err
		}
		out = append(out, mnt)
	}
	if in.Hosts != nil && !ownHosts {
		path := m.Dirs.EtcHosts(in.Pod.UID)
		if err := writeInPlace(path, in.Hosts); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path})
	}
	if path := in.Container.TerminationMessagePath; path != "" {
		file := m.Dirs.MessageFile(in.Pod.UID, in.Container.Name, in.Attempt)
		if err := makeMessageFile(file); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: path, HostPath: file})
	}
	return out, nil
}

func (m *Mounter) volumeMount(in ContainerInput, index int, vm *v1.VolumeMount) (*runtimeapi.Mount, error) {
	v := find(in.Pod, vm.Name)
	if v == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, in.Container.Name)
	}
	sub, err := subPath(vm, in.Env)
	if err != nil {
		return nil, err
	}
	if v.Image != nil {
		return imageMount(in, v, vm, sub)
	}
	at, err := m.locate(in.Pod, v)
	if err != nil {
		return nil, err
	}
	host := at.Path
	if sub != "" {
		target := filepath.Join(m.Dirs.Subpaths(in.Pod.UID), vm.Name, in.Container.Name, strconv.Itoa(index))
		if err := bindSubpath(host, sub, target); err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, in.Container.Name, err)
		}
		host = target
	}
	propagation, err := propagationOf(vm.MountPropagation)
	if err != nil {
		return nil, err
	}
	recursive, err := recursiveReadOnly(vm, in.RecursiveReadOnly)
	if err != nil {
		return nil, err
	}
	if at.Block {
		return nil, fmt.Errorf("volume %q is a device, but container %q has it in volumeMounts", vm.Name, in.Container.Name)
	}
	return &runtimeapi.Mount{
		ContainerPath: absolute(vm.MountPath), HostPath: host, Readonly: vm.ReadOnly || at.ReadOnly, Propagation: propagation, RecursiveReadOnly: recursive,
	}, nil
}

// ContainerDevices returns the volumes that a container has as devices.
func (m *Mounter) ContainerDevices(pod *v1.Pod, c *v1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		v := find(pod, d.Name)
		if v == nil {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		at, err := m.locate(pod, v)
		if err != nil {
			return nil, err
		}
		if !at.Block {
			return nil, fmt.Errorf("volume %q is not a device, but container %q has it in volumeDevices", d.Name, c.Name)
		}
		access := "mrw"
		if at.ReadOnly {
			access = "mr"
		}
		out = append(out, &runtimeapi.Device{HostPath: at.Path, ContainerPath: d.DevicePath, Permissions: access})
	}
	return out, nil
}

func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join("/", path)
}

// imageMount mounts an image, or a directory of it (KEP-4639).
func imageMount(in ContainerInput, v *v1.Volume, vm *v1.VolumeMount, sub string) (*runtimeapi.Mount, error) {
	ref := in.Images[v.Name]
	if ref == "" {
		return nil, fmt.Errorf("the image of volume %q is not on the node", v.Name)
	}
	if sub != "" && !filepath.IsLocal(sub) {
		return nil, fmt.Errorf("subPath %q must be relative and must not contain '..'", sub)
	}
	propagation, err := propagationOf(vm.MountPropagation)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.Mount{
		ContainerPath: absolute(vm.MountPath), Readonly: true, Propagation: propagation, ImageSubPath: sub,
		Image: &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: v.Image.Reference, Annotations: in.Pod.Annotations},
	}, nil
}

// recursiveReadOnly reports whether a mount is read-only including everything below it.
func recursiveReadOnly(vm *v1.VolumeMount, can bool) (bool, error) {
	mode := v1.RecursiveReadOnlyDisabled
	if vm.RecursiveReadOnly != nil {
		mode = *vm.RecursiveReadOnly
	}
	switch {
	case mode == v1.RecursiveReadOnlyDisabled:
		return false, nil
	case !vm.ReadOnly:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", vm.Name)
	case vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", vm.Name, *vm.MountPropagation)
	case mode == v1.RecursiveReadOnlyIfPossible:
		return can, nil
	case !can:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", vm.Name)
	default:
		return true, nil
	}
}

// subPath resolves subPath or subPathExpr.
func subPath(vm *v1.VolumeMount, env []criconfig.Env) (string, error) {
	if vm.SubPathExpr == "" {
		return vm.SubPath, nil
	}
	missing := ""
	sub := criconfig.Expand(vm.SubPathExpr, func(name string) (string, bool) {
		for _, e := range env {
			if e.Name == name {
				return e.Value, true
			}
		}
		missing = name
		return "", false
	})
	if missing != "" {
		return "", fmt.Errorf("missing value for %q", missing)
	}
	return sub, nil
}

func propagationOf(p *v1.MountPropagationMode) (runtimeapi.MountPropagation, error) {
	if p == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *p {
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	default:
		return 0, fmt.Errorf("invalid MountPropagation mode: %q", *p)
	}
}

// writeInPlace writes a file that containers may have bound. The inode must stay the same, so the
// file is not replaced. Containers may have written any amount of data to it.
func writeInPlace(path string, data []byte) error {
	if old, err := safepath.ReadFile(path, int64(len(data))); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return write(path, os.O_TRUNC, data, 0o644)
}

// makeMessageFile creates a file that any user of the container may write to.
func makeMessageFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := write(path, os.O_EXCL, nil, 0o666); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// write sets a file's content and mode, regardless of the umask.
func write(path string, how int, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|how, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Close())
}
