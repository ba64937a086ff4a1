package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/rootfs"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/oci"
)

// volumeDir holds the sources of those mounts that are not simply a folder of the host: images,
// and folders whose owners are translated. They are mounted there only until the container has
// its own copy.
func (c *Container) volumeDir() string { return filepath.Join(c.bundle.Dir, "volumes") }

// releaseVolumes unmounts and removes them.
func (c *Container) releaseVolumes() error {
	if !disk.Exists(c.volumeDir()) {
		return nil
	}
	return mount.RemoveCopies(c.volumeDir())
}

// resolveMounts finds the sources of the container's mounts.
func (c *Container) resolveMounts(b *sandbox.Sandbox) ([]oci.ResolvedMount, error) {
	var out []oci.ResolvedMount
	for i, m := range c.Config().GetMounts() {
		if err := checkMount(m); err != nil {
			return nil, err
		}
		if m.GetRecursiveReadOnly() && (!c.env.Host.RecursiveReadOnly || !c.runtime.Features.RecursiveReadOnly) {
			return nil, crierror.Precondition("mount %s: %w: the kernel or %s cannot", m.GetContainerPath(), crierrors.ErrRROUnsupported, c.runtime.Name)
		}
		place := filepath.Join(c.volumeDir(), strconv.Itoa(i))
		var src string
		var err error
		if m.GetImage() != nil {
			if src, err = c.imageVolume(b, m, place); err != nil {
				err = fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
			}
		} else {
			src, err = b.FolderVolume(m, place)
		}
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		if err := rootfs.CheckPlace(c.rootfs(), m.GetContainerPath(), src); err != nil {
			return nil, fmt.Errorf("mount: %w", err)
		}
		locked, err := b.LockedOptions(src)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		out = append(out, oci.ResolvedMount{Mount: m, Source: src, Locked: locked})
	}
	return out, nil
}

func checkMount(m *runtimeapi.Mount) error {
	at := m.GetContainerPath()
	if m.GetImage() != nil {
		switch {
		case m.GetHostPath() != "":
			return crierror.Invalid("mount %s: it has both an image and a host path", at)
		case !m.GetReadonly():
			return crierror.Invalid("mount %s: an image can only be mounted read-only", at)
		}
	}
	if m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE) {
		return crierror.Invalid("mount %s: recursive read-only needs a read-only mount with private propagation", at)
	}
	for _, o := range m.GetMountOptions() {
		if o != "noexec" && o != "nodev" && o != "nosuid" {
			return crierror.Invalid("mount %s: option %q must be noexec, nodev or nosuid", at, o)
		}
	}
	if len(m.GetUidMappings()) == 0 && len(m.GetGidMappings()) == 0 {
		return nil
	}
	for kind, ms := range map[string][]*runtimeapi.IDMapping{"uids": m.GetUidMappings(), "gids": m.GetGidMappings()} {
		if err := sandbox.CheckMapping(kind, ms); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	return nil
}

// imageVolume mounts an image (KEP-4639) and returns the path of the requested part of it.
func (c *Container) imageVolume(b *sandbox.Sandbox, m *runtimeapi.Mount, place string) (string, error) {
	ref := m.GetImage().GetImage()
	img, ok := c.env.Images.Lookup(ref)
	if !ok {
		return "", crierror.NotFound("image %q is not present; pull it first", ref)
	}
	if err := c.env.Images.Hold(img.ID, c.ID); err != nil {
		return "", err
	}
	layers, err := c.env.Images.Layers(img.ID)
	if err != nil {
		return "", err
	}
	// Overlayfs needs at least two folders. Before Linux 6.3, owners cannot be translated on a
	// tmpfs, which the state folder often is.
	empty := filepath.Join(c.root, filepath.Base(place)+".empty")
	for _, d := range []string{place, empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	if err := b.Overlay(place, append(layers, empty), "", "", place+".lower"); err != nil {
		return "", err
	}
	return rootfs.SubPath(place, m.GetImageSubPath())
}
