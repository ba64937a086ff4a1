// Package disks fills disks, and breaks what they promise, for tests.
package disks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Fill appends to a file until its disk has not a byte left.
func Fill(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for size := 1 << 20; size > 0 && err == nil; size /= 2 {
		for chunk := make([]byte, size); err == nil; {
			_, err = f.Write(chunk)
		}
		if errors.Is(err, unix.ENOSPC) {
			err = nil
		}
	}
	return errors.Join(err, f.Close())
}

// TakeHeld takes away the room that etcd's files hold ahead, below the folder etcd of a data dir.
// That is how it is on disks that promise more than they have, as thinly provisioned ones do, and
// on those that need new room for everything that is written.
func TakeHeld(etcd string) error {
	member := filepath.Join(etcd, "member-data", "member")
	database := filepath.Join(member, "snap", "db")
	info, err := os.Stat(database)
	if err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		return fmt.Errorf("no log in %s: %w", member, err)
	}
	next, err := filepath.Glob(filepath.Join(member, "wal", "*.tmp"))
	if err != nil {
		return err
	}
	err = errors.Join(os.Truncate(database, info.Size()), os.RemoveAll(filepath.Join(etcd, "reserve")), punchBehind(slices.Max(logs)))
	for _, path := range next {
		err = errors.Join(err, punch(path, 0))
	}
	return err
}

// punchBehind leaves a little of the room that is not written to yet, for writes in progress.
func punchBehind(path string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return punch(path, int64(len(bytes.TrimRight(doc, "\x00")))+256<<10)
}

func punch(path string, from int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	const all = 1 << 30
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, all)
	return errors.Join(err, f.Close())
}

// Tmpfs mounts a tmpfs at dir until the test ends, with options such as "size=64k,nr_inodes=5".
// Files that are open then do not fail the test: a component that failed may hold some until the
// process ends.
func Tmpfs(t testing.TB, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// Mount makes a file system for dir alone, of the given size in bytes, in an image file in the
// folder images: ext4, which keeps some room for root as most disks do, or a tmpfs.
func Mount(ctx context.Context, kind, dir, images string, size int64) error {
	if kind == "tmpfs" {
		return unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	}
	image := filepath.Join(images, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		return err
	}
	for _, command := range [][]string{{"mkfs." + kind, "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	return nil
}

// Loop returns a new loop device of a size in MiB, with nothing on it.
func Loop(t testing.TB, size int64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "-f", "--show", file).Output()
	if err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if err := exec.CommandContext(context.WithoutCancel(t.Context()), "losetup", "-d", device).Run(); err != nil {
			t.Errorf("detach %s: %v", device, err)
		}
	})
	return device
}
