package oci

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// nulls makes null devices, a new one each time. A user who can reach a process's open files may
// do to them what their owner may, and crun makes the container's user the owner of its standard
// streams. If one of them were the machine's null device, that user could take it away from every
// program on the machine. A device shared by two containers would be a channel between them.
//
// The devices have no name and lie on a file system that is mounted nowhere, so that nothing has
// to be cleaned up. The run directory would not do: devices on its file system may not be opened.
type nulls struct {
	mu   sync.Mutex // all devices use the same name, one after the other
	root *os.File
}

const nullName = "null"

func makeNulls() (*nulls, error) {
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file system for null devices: %w", err)
	}
	defer func() { _ = unix.Close(config) }()
	if err := unix.FsconfigSetString(config, "mode", "700"); err != nil {
		return nil, fmt.Errorf("create a file system for null devices: %w", err)
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, fmt.Errorf("create a file system for null devices: %w", err)
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount a file system for null devices: %w", err)
	}
	return &nulls{root: os.NewFile(uintptr(root), "nulls")}, nil
}

// open makes a null device that disappears when the last process closes it.
func (n *nulls) open() (*os.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	root := int(n.root.Fd())
	if err := unix.Mknodat(root, nullName, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return nil, fmt.Errorf("create a null device: %w", err)
	}
	fd, err := unix.Openat(root, nullName, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a null device: %w", err), unix.Unlinkat(root, nullName, 0))
	}
	f := os.NewFile(uintptr(fd), nullName)
	// Regardless of the umask.
	if err := errors.Join(unix.Fchmod(fd, 0o666), unix.Unlinkat(root, nullName, 0)); err != nil {
		return nil, errors.Join(fmt.Errorf("create a null device: %w", err), f.Close())
	}
	return f, nil
}
