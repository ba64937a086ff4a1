package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/safepath"
)

// procFiles are the places in /proc at which runc allows a mount: files that describe the size of
// the machine, as lxcfs provides them.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime", "/proc/loadavg",
	"/proc/slabinfo", "/proc/sys/kernel/ns_last_pid", "/proc/sys/crypto/fips_enabled",
}

// CheckPlace refuses a mount at a place in the container that must not be covered: its root, and
// /proc, through which the runtime sets the confinement of the process. runc refuses those too,
// crun does not.
func CheckPlace(rootfs, place, src string) error {
	at, err := resolvedPlace(rootfs, place)
	if err != nil {
		return err
	}
	switch {
	case at == "/":
		return crierror.Invalid("%q cannot be mounted over: it is the container's root", place)
	case at == "/proc" && isProc(src):
		return nil // the machine's own procfs
	case at != "/proc" && !strings.HasPrefix(at, "/proc/") || slices.Contains(procFiles, at):
		return nil
	}
	return crierror.Invalid("%q cannot be mounted because it is inside /proc", place)
}

// resolvedPlace follows the image's links on the way to a place, as far as the path exists.
func resolvedPlace(rootfs, place string) (string, error) {
	root, err := safepath.Open(rootfs)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	top, err := pathOf(root, ".")
	if err != nil {
		return "", err
	}
	way, rest := filepath.Clean("/"+place), ""
	for {
		real, err := pathOf(root, way)
		if err == nil {
			return filepath.Join("/", strings.TrimPrefix(real, top), rest), nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || way == "/" {
			return "", err
		}
		way, rest = filepath.Dir(way), filepath.Join(filepath.Base(way), rest)
	}
}

func pathOf(root *safepath.Dir, path string) (string, error) {
	f, err := root.Path(path)
	if err != nil {
		return "", err
	}
	real, err := os.Readlink(safepath.Proc(f))
	return real, errors.Join(err, f.Close())
}

func isProc(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
}
