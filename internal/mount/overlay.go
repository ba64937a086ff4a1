package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/safepath"
)

// maxOptions is the length that mount(2) takes: one page, less the terminating zero.
const maxOptions = 4095

// Overlay mounts the lower folders, topmost first, under the writable upper at dst. work must be
// empty and on the file system of upper. Without an upper the overlay is read-only, and needs two
// lower folders. If the kernel supports it, the mount is volatile: nobody needs a container's
// writable layer after a crash of the machine, and syncing it at every unmount is slow.
func Overlay(dst string, lower []string, upper, work string) error {
	if len(lower) == 0 {
		return fmt.Errorf("mount overlay at %s: no lower folder", dst)
	}
	opts := "lowerdir=" + escapeAll(lower)
	if upper != "" {
		opts += fmt.Sprintf(",upperdir=%s,workdir=%s", escape(upper), escape(work))
	}
	if len(opts)+len(",volatile") > maxOptions {
		return overlayByFD(dst, lower, upper, work)
	}
	withVolatile := opts
	if upper != "" {
		withVolatile += ",volatile"
	}
	err := unix.Mount("overlay", dst, "overlay", 0, withVolatile)
	if errors.Is(err, unix.EINVAL) && withVolatile != opts { // before Linux 5.10
		err = unix.Mount("overlay", dst, "overlay", 0, opts)
	}
	if err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dst, err)
	}
	return nil
}

// escape escapes what overlayfs's option parser would take for separators.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(path)
}

func escapeAll(paths []string) string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = escape(p)
	}
	return strings.Join(out, ":")
}

// overlayByFD mounts more layers than fit into one page of options (Linux 6.5).
func overlayByFD(dst string, lower []string, upper, work string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dst, err)
	}
	defer func() { _ = unix.Close(fs) }()
	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return fmt.Errorf("mount overlay of %d layers at %s (needs Linux 6.5): %s: %w", len(lower), dst, key, err)
		}
		return nil
	}
	for _, l := range lower {
		if err := set("lowerdir+", l); err != nil {
			return err
		}
	}
	if upper != "" {
		if err := errors.Join(set("upperdir", upper), set("workdir", work), unix.FsconfigSetFlag(fs, "volatile")); err != nil {
			return fmt.Errorf("mount overlay at %s: %w", dst, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dst, err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dst, err)
	}
	defer func() { _ = unix.Close(mnt) }()
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", dst, err)
	}
	return nil
}

// RemoveTree removes a folder after unmounting everything in it, so that nothing that was mounted
// there loses a file.
func RemoveTree(dir string) error {
	if err := UnmountUnder(dir); err != nil {
		return err
	}
	return safepath.RemoveAll(dir)
}
