package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/safepath"
)

// mountSource follows the links of a path. It makes a folder where there is nothing, as every
// runtime does.
func mountSource(path string) (string, error) {
	src, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return src, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// checkPropagation refuses what would silently not work. It requires a shared mount for both
// directions, and a shared or slave one for host to container.
func checkPropagation(src string, p runtimeapi.MountPropagation) error {
	if p == runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return nil
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(src))
	if err != nil {
		return err
	}
	var at *mountinfo.Info
	for _, i := range infos {
		if at == nil || len(i.Mountpoint) >= len(at.Mountpoint) {
			at = i
		}
	}
	if at == nil {
		return fmt.Errorf("no mount holds %s", src)
	}
	shared, slave := false, false
	for f := range strings.FieldsSeq(at.Optional) {
		shared = shared || strings.HasPrefix(f, "shared:")
		slave = slave || strings.HasPrefix(f, "master:")
	}
	if shared || (slave && p == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER) {
		return nil
	}
	kind := "shared"
	if p == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		kind = "shared or slave"
	}
	return fmt.Errorf("path %q is mounted on %q but it is not a %s mount", src, at.Mountpoint, kind)
}

// ensureDir makes the working directory inside the container's root if the image does not have
// it. It follows symbolic links as the container would. The folder belongs to owner.
func ensureDir(rootfs, dir string, owner int) error {
	root, err := safepath.Open(rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.MakeAllFor(owner, dir, 0o755)
	if err != nil {
		return fmt.Errorf("working directory %s: %w", dir, err)
	}
	return f.Close()
}
