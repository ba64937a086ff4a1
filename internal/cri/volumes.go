package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/safepath"
)

// volumeDir holds the sources of those mounts that are not simply a folder of the host: images,
// and folders whose owners are translated. They are mounted there only until the container has
// its own copy.
func (c *container) volumeDir() string { return filepath.Join(c.bundle.Dir, "volumes") }

// releaseVolumes unmounts and removes them.
func (c *container) releaseVolumes() error {
	if !exists(c.volumeDir()) {
		return nil
	}
	return mount.RemoveCopies(c.volumeDir())
}

// resolveMounts finds the sources of the container's mounts.
func (s *Server) resolveMounts(b *sandbox, c *container) ([]oci.ResolvedMount, error) {
	var out []oci.ResolvedMount
	for i, m := range c.config().GetMounts() {
		if err := checkMount(m); err != nil {
			return nil, err
		}
		if m.GetRecursiveReadOnly() && (!s.host.RecursiveReadOnly || !c.runtime.Features.RecursiveReadOnly) {
			return nil, precondition("mount %s: %w: the kernel or %s cannot", m.GetContainerPath(), crierrors.ErrRROUnsupported, c.runtime.Name)
		}
		place := filepath.Join(c.volumeDir(), strconv.Itoa(i))
		var src string
		var err error
		if m.GetImage() != nil {
			if src, err = s.imageVolume(b, c, m, place); err != nil {
				err = fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
			}
		} else {
			src, err = b.folderVolume(m, place)
		}
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		if err := checkPlace(c.rootfs(), m.GetContainerPath(), src); err != nil {
			return nil, fmt.Errorf("mount: %w", err)
		}
		locked, err := b.lockedOptions(src)
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
			return invalid("mount %s: it has both an image and a host path", at)
		case !m.GetReadonly():
			return invalid("mount %s: an image can only be mounted read-only", at)
		}
	}
	if m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE) {
		return invalid("mount %s: recursive read-only needs readonly and private propagation", at)
	}
	for _, o := range m.GetMountOptions() {
		if o != "noexec" && o != "nodev" && o != "nosuid" {
			return invalid("mount %s: option %q is none of noexec, nodev and nosuid", at, o)
		}
	}
	if len(m.GetUidMappings()) == 0 && len(m.GetGidMappings()) == 0 {
		return nil
	}
	for kind, ms := range map[string][]*runtimeapi.IDMapping{"uids": m.GetUidMappings(), "gids": m.GetGidMappings()} {
		if err := checkMapping(kind, ms); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	return nil
}

// folderVolume returns the source for a folder or file of the host. A pod with a user namespace
// gets a copy of the mount, with translated owners if it asks for that, because it may not be
// allowed to reach the original.
func (b *sandbox) folderVolume(m *runtimeapi.Mount, place string) (string, error) {
	src, err := mountSource(m.GetHostPath())
	if err != nil {
		return "", err
	}
	if err := checkPropagation(src, m.GetPropagation()); err != nil {
		return "", err
	}
	if len(m.GetUidMappings()) == 0 && b.usernsOptions() == nil {
		return src, nil
	}
	st, err := os.Stat(src)
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		err = os.MkdirAll(place, 0o711)
	} else {
		err = writeFile(place, nil, 0o600)
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

// imageVolume mounts an image (KEP-4639) and returns the path of the requested part of it.
func (s *Server) imageVolume(b *sandbox, c *container, m *runtimeapi.Mount, place string) (string, error) {
	ref := m.GetImage().GetImage()
	img, ok := s.images.Lookup(ref)
	if !ok {
		return "", notFound("image %q is not present; pull it first", ref)
	}
	if err := s.images.Hold(img.ID, c.id); err != nil {
		return "", err
	}
	layers, err := s.images.Layers(img.ID)
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
	if err := b.overlay(place, append(layers, empty), "", "", place+".lower"); err != nil {
		return "", err
	}
	return subPath(place, m.GetImageSubPath())
}

// overlay mounts folders, with translated owners for pods with a user namespace. scratch lies in
// a container's volumeDir, so that what a crash leaves mounted there is unmounted before anything
// is deleted: it holds the image's layers.
func (b *sandbox) overlay(dst string, lower []string, upper, work, scratch string) error {
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
	failpoint("layers-translated")
	if err := mount.Overlay(dst, copies, upper, work); err != nil {
		return err
	}
	return mount.RemoveCopies(scratch)
}

// subPath returns the path of a folder or file in an image; it follows no link out of the image.
func subPath(root, sub string) (string, error) {
	if sub == "" {
		return root, nil
	}
	if !filepath.IsLocal(sub) {
		return "", fmt.Errorf("path %q in the image leads out of it", sub)
	}
	dir, err := safepath.Open(root)
	if err != nil {
		return "", err
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.Path(sub)
	if err != nil {
		return "", fmt.Errorf("path %q in the image: %w", sub, err)
	}
	path, err := os.Readlink(safepath.Proc(f))
	return path, errors.Join(err, f.Close())
}

// volumeImages returns the IDs of the images that the container mounts, by index of the mount; ""
// stands for a mount of something else.
func (s *Server) volumeImages(cfg *runtimeapi.ContainerConfig) (ids []string) {
	for i, m := range cfg.GetMounts() {
		if img, ok := s.images.Lookup(m.GetImage().GetImage()); ok && m.GetImage() != nil {
			for len(ids) < i {
				ids = append(ids, "")
			}
			ids = append(ids, img.ID)
		}
	}
	return ids
}
