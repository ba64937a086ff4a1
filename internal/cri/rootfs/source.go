package rootfs

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

// Source follows the links of a path. It makes a folder where there is nothing, as every
// runtime does.
func Source(path string) (string, error) {
	src, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return src, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// CheckPropagation refuses what would silently not work. It requires a shared mount for both
// directions, and a shared or slave one for host to container.
func CheckPropagation(src string, p runtimeapi.MountPropagation) error {
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
		return fmt.Errorf("no mount contains %s", src)
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

// SubPath returns the path of a folder or file in an image; it follows no link out of the image.
func SubPath(root, sub string) (string, error) {
	if sub == "" {
		return root, nil
	}
	if !filepath.IsLocal(sub) {
		return "", fmt.Errorf("path %q leads out of the image", sub)
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
