// Package netns makes the Linux namespaces that the containers of a pod share, and runs code
// inside them. A namespace is kept alive by a bind mount of its file (a pin), so that it outlives
// Wherry and needs no process.
//
// Importing the package locks the main goroutine to the main thread. A thread that has entered a
// namespace is discarded afterwards; if it were the main thread, it could not end, and /proc/self
// would show the pod's namespaces for ever.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() }

// Kind is a type of namespace, by its name in /proc/PID/ns.
type Kind string

// The namespaces that can be pinned here. PID and user namespaces are not among them: the first
// needs a process, the second an ID mapping.
const (
	Net Kind = "net"
	IPC Kind = "ipc"
	UTS Kind = "uts"
)

var flags = map[Kind]int{Net: unix.CLONE_NEWNET, IPC: unix.CLONE_NEWIPC, UTS: unix.CLONE_NEWUTS}

// Path returns where Create pins the namespace of that kind below dir.
func Path(dir string, k Kind) string { return filepath.Join(dir, string(k)) }

// Create makes one new namespace of each kind and pins them in dir, which it makes. Before it
// returns, it runs inside on a thread that is in all of them. If it fails, nothing stays pinned.
func Create(dir string, kinds []Kind, inside func() error) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Remove(dir))
		}
	}()
	return onThread(func() error {
		set := 0
		for _, k := range kinds {
			if err := touch(Path(dir, k)); err != nil {
				return err
			}
			set |= flags[k]
		}
		if err := unix.Unshare(set); err != nil {
			return fmt.Errorf("create namespaces %v: %w", kinds, err)
		}
		for _, k := range kinds {
			src := "/proc/thread-self/ns/" + string(k)
			if err := unix.Mount(src, Path(dir, k), "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("pin namespace %s: %w", Path(dir, k), err)
			}
		}
		if inside == nil {
			return nil
		}
		return inside()
	})
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Do runs fn on a thread inside the namespaces at the paths (each a pin or /proc/PID/ns/KIND).
// Sockets that fn opens stay in that namespace wherever they are used; goroutines that it starts
// do not run in it.
func Do(fn func() error, paths ...string) error {
	return onThread(func() error {
		for _, p := range paths {
			if err := enter(p); err != nil {
				return err
			}
		}
		return fn()
	})
}

func enter(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, 0); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// onThread runs fn on its own thread, which ends with it: the goroutine never unlocks, so the Go
// runtime discards the thread and whatever it changed.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := errors.New("the goroutine inside a namespace exited (runtime.Goexit)")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic inside a namespace: %v", p)
			}
			done <- err
		}()
		err = fn()
	}()
	return <-done
}

// Pinned reports whether a live namespace is pinned at path.
func Pinned(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check namespace %s: %w", path, err)
	}
	return st.Type == unix.NSFS_MAGIC, nil
}

// Remove removes every pin in dir and then dir itself. The kernel ends a namespace with its last
// user. It is not an error if dir does not exist.
func Remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := Unpin(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unpin unmounts the pin at path, however often it was mounted, and removes the file.
func Unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		return fmt.Errorf("unpin namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SetSysctl writes a kernel parameter ("net.ipv4.ip_forward" or with slashes) in
// the namespaces of the calling thread: use it inside Create or Do.
func SetSysctl(name, value string) error {
	path, err := SysctlPath(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w", name, value, err)
	}
	return nil
}

// SysctlPath returns the file of a sysctl. The first separator in the name decides which one
// separates (sysctl(8)); the other character then stands for itself, as in net/ipv4/conf/eth0.1.
func SysctlPath(name string) (string, error) {
	rel := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		rel = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	if rel == "" || !filepath.IsLocal(rel) || strings.HasSuffix(rel, "/") {
		return "", fmt.Errorf("%q is not a valid sysctl name", name)
	}
	return filepath.Join("/proc/sys", rel), nil
}
