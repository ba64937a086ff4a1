package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/podconfig"
)

// ContainerInput is what the mounts of one container instance depend on.
type ContainerInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Attempt   uint32
	// Env expands subPathExpr.
	Env []podconfig.Env
	// Hosts is the content of /etc/hosts; nil leaves the image's own.
	Hosts []byte
}

// ContainerMounts prepares and returns the mounts of a container: its volumes,
// /etc/hosts and the file for its termination message.
func (m *Mounter) ContainerMounts(in ContainerInput) ([]*runtimeapi.Mount, error) {
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
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path, Readonly: readonlyRoot(in.Container)})
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

func readonlyRoot(c *v1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem
}

func (m *Mounter) volumeMount(in ContainerInput, index int, vm *v1.VolumeMount) (*runtimeapi.Mount, error) {
	v := find(in.Pod, vm.Name)
	if v == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, in.Container.Name)
	}
	host := m.Path(in.Pod, v)
	sub, err := subPath(vm, in.Env)
	if err != nil {
		return nil, err
	}
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
	path := vm.MountPath
	if !filepath.IsAbs(path) {
		path = filepath.Join("/", path)
	}
	readOnly := vm.ReadOnly || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	recursive := vm.ReadOnly && vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled
	return &runtimeapi.Mount{
		ContainerPath: path, HostPath: host, Readonly: readOnly, Propagation: propagation, RecursiveReadOnly: recursive,
	}, nil
}

// subPath resolves subPath or subPathExpr.
func subPath(vm *v1.VolumeMount, env []podconfig.Env) (string, error) {
	if vm.SubPathExpr == "" {
		return vm.SubPath, nil
	}
	missing := ""
	sub := podconfig.Expand(vm.SubPathExpr, func(name string) (string, bool) {
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

// writeInPlace writes a file that containers may have bound: it must stay the same
// inode, so it is not replaced.
func writeInPlace(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// makeMessageFile makes the file that any user of the container may write to.
func makeMessageFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Chmod(path, 0o666)
}
