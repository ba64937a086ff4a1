package disks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"
)

// fileSystems are names of file systems that lie on a disk: mount runs a program for those with a dot, and for fuse.
var fileSystems = regexp.MustCompile(`^[a-z][a-z0-9]{1,15}$`)

// Mount mounts the file system of a disk at a folder. A disk that has nothing on it gets one, unless it is to be read only;
// one that was not unmounted is repaired before.
func Mount(device, dir, fsType string, options []string) error {
	if fsType == "" {
		fsType = "ext4"
	}
	if !fileSystems.MatchString(fsType) || strings.HasPrefix(fsType, "fuse") {
		return fmt.Errorf("fsType %q is no file system of a disk", fsType)
	}
	if err := readable(device); err != nil {
		return err
	}
	m := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), utilexec.New())
	if err := m.FormatAndMount(device, dir, fsType, options); err != nil {
		return fmt.Errorf("mount %s as %s: %w", device, fsType, err)
	}
	return nil
}

// readable returns an error if the beginning of a disk cannot be read: blkid would say that there is nothing on it, and what
// is there would be overwritten.
func readable(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const where = 1 << 20 // all file systems have said what they are by then
	if _, err := io.CopyN(io.Discard, f, where); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("disk %s cannot be read, so that nobody can tell what is on it: %w", device, err)
	}
	return nil
}

// Unmount unmounts a folder, if something is mounted there, and returns when nothing of it is left to be written. Unlike
// mount.UnmountStack it fails if something uses it.
func Unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return &fs.PathError{Op: "unmount", Path: dir, Err: err}
}
