// Package disks finds the disks that a node has from elsewhere, and lets go of them: those of iSCSI targets, to which it
// logs in with iscsiadm, and those of Fibre Channel, which its adapters see.
//
// Everything can be repeated, also after a crash in the middle. What there is, the kernel says (sysfs); which of it is
// ours to take away, the caller has written down. A disk is let go of only when nobody has it open any more.
package disks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Node is a machine that has disks. The zero value is this one; tests make up others.
type Node struct {
	// Root is in front of /sys and /dev.
	Root string
	// Run runs a program of the machine, and returns what it wrote.
	Run func(ctx context.Context, program string, args ...string) ([]byte, error)
}

func (n Node) sys(path ...string) string {
	return filepath.Join(n.Root, "/sys", filepath.Join(path...))
}

// device returns the path of a disk.
func (n Node) device(name string) string { return filepath.Join(n.Root, "/dev", name) }

// killPatience is how long a program that was killed may keep its output open.
const killPatience = time.Second

func (n Node) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	if n.Run != nil {
		return n.Run(ctx, program, args...)
	}
	return Run(ctx, program, args...)
}

// Run runs a program of the machine, and returns what it wrote. If there is none, the error is fs.ErrNotExist.
func Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	path, err := Find(program)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, killPatience
	err = cmd.Run()
	return out.Bytes(), err
}

// Find looks for a program also where those of the administrator are, which not every PATH has. If there is none, the
// error is fs.ErrNotExist.
func Find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", &fs.PathError{Op: "find", Path: name, Err: fs.ErrNotExist}
}

// appearTime is how long the kernel may take to show a disk that it was told to look for.
const appearTime = 30 * time.Second

// appears waits until find returns something, or an error. The kernel says nothing when a disk comes that udev would not
// say too, and not every machine has udev.
func appears(ctx context.Context, find func() (string, error)) (string, error) {
	return within(ctx, appearTime, find)
}

func within(ctx context.Context, patience time.Duration, find func() (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		if found, err := find(); err != nil || found != "" {
			return found, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// multipathOf returns the device that device-mapper has made of several paths to a disk; "" if there is none.
func (n Node) multipathOf(disk string) (string, error) {
	all, err := filepath.Glob(n.sys("block", "dm-*", "slaves", disk))
	if err != nil {
		return "", err
	}
	for _, slave := range all {
		dm := filepath.Dir(filepath.Dir(slave))
		uuid, err := os.ReadFile(filepath.Join(dm, "dm", "uuid"))
		if err == nil && strings.HasPrefix(string(uuid), "mpath-") { // others lie on the disk: they are what is in it
			return filepath.Base(dm), nil
		}
	}
	return "", nil
}

// slaves returns the disks of which a device of several paths is made; a disk is its own.
func (n Node) slaves(name string) []string {
	entries, err := os.ReadDir(n.sys("block", name, "slaves"))
	if err != nil || len(entries) == 0 {
		return []string{name}
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// together returns the device by which disks are used that are one: that of several paths, if there is one, or else the
// first. It waits a while for one if there are several disks, and a program that makes such devices.
func (n Node) together(ctx context.Context, all []string) (string, error) {
	find := func() (string, error) {
		for _, disk := range all {
			if dm, err := n.multipathOf(disk); err != nil || dm != "" {
				return dm, err
			}
		}
		return "", nil
	}
	dm, err := find()
	if _, lacks := Find("multipath"); err == nil && dm == "" && len(all) > 1 && lacks == nil {
		dm, err = within(ctx, multipathTime, find)
		if err != nil && ctx.Err() == nil { // one path is better than none
			err = nil
		}
	}
	if err != nil || dm != "" {
		return dm, err
	}
	return all[0], nil
}

// multipathTime is how long multipathd may take to make one device of several, as upstream's multipathDeviceTimeout.
const multipathTime = 10 * time.Second

// drop has the kernel forget disks that are one, unless somebody uses them.
func (n Node) drop(ctx context.Context, all []string) error {
	for _, disk := range all {
		dm, err := n.multipathOf(disk)
		if err != nil {
			return err
		}
		if dm == "" {
			continue
		}
		if err := n.Unused(ctx, dm); err != nil {
			return err
		}
		if out, err := n.run(ctx, "multipath", "-f", n.device(dm)); err != nil {
			return fmt.Errorf("multipath -f %s: %w: %s", dm, err, bytes.TrimSpace(out))
		}
	}
	for _, disk := range all {
		if err := n.Unused(ctx, disk); err != nil {
			return err
		}
		err := os.WriteFile(n.sys("block", disk, "device", "delete"), []byte("1"), 0o200)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget disk %s: %w", disk, err)
		}
		_, err = appears(ctx, func() (string, error) {
			if _, err := os.Stat(n.sys("block", disk)); errors.Is(err, fs.ErrNotExist) {
				return "gone", nil
			}
			return "", nil
		})
		if err != nil {
			return fmt.Errorf("forget disk %s: %w", disk, err)
		}
	}
	return nil
}

// busyTime is how long a disk may be busy after the last mount of it has gone: the kernel ends file systems in the
// background, and udev looks at disks.
const busyTime = time.Second

// BusyError says that a disk is in use.
type BusyError struct{ Disk string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("disk %s is in use: something on this machine has it mounted or open", e.Disk)
}

// Unused returns an error if a file system or another device uses a disk, in whichever mount namespace. What the kernel has
// not written yet is written: if that fails, it is lost, because nobody is left who could be told.
func (n Node) Unused(ctx context.Context, disk string) error {
	var fd int
	_, err := within(ctx, busyTime, func() (opened string, err error) {
		fd, err = unix.Open(n.device(disk), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EBUSY) {
			return "", nil
		}
		return disk, err
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return &BusyError{disk}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENXIO): // it is gone
		return nil
	case err != nil:
		return fmt.Errorf("open disk %s: %w", disk, err)
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.Fsync(fd)
	return nil
}
