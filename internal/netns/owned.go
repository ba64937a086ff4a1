package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the kind of a user namespace; only CreateOwned makes one.
const User Kind = "user"

// IDMap is the mapping of user and group IDs in a user namespace: inside → on the host.
type IDMap struct{ UIDs, GIDs []syscall.SysProcIDMap }

// CreateOwned is Create plus a user namespace that owns the others: its root may administer them.
// inside runs in all of them except the user namespace.
func CreateOwned(dir string, kinds []Kind, ids IDMap, inside func() error) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Remove(dir))
		}
	}()
	set := 0
	for _, k := range kinds {
		set |= flags[k]
	}
	err = withChild(set, ids, func(pid int) error {
		for _, k := range append([]Kind{User}, kinds...) {
			if err := touch(Path(dir, k)); err != nil {
				return err
			}
			if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/%s", pid, k), Path(dir, k), "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("pin namespace %s: %w", Path(dir, k), err)
			}
		}
		return nil
	})
	if err != nil || inside == nil {
		return err
	}
	var paths []string
	for _, k := range kinds {
		paths = append(paths, Path(dir, k))
	}
	return Do(inside, paths...)
}

// OpenUser makes a new user namespace, which ends when the file is closed.
func OpenUser(ids IDMap) (ns *os.File, err error) {
	err = withChild(0, ids, func(pid int) (err error) {
		ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	return ns, err
}

// withChild calls fn with a process in a new user namespace and in those of the flags. A thread
// cannot make a user namespace, because the other threads of this process would not be in it. The
// child is traced, so it stops before the first instruction of its program, and is killed there.
func withChild(set int, ids IDMap, fn func(pid int) error) error {
	return onThread(func() (err error) {
		cmd := exec.Command("/proc/self/exe") //nolint:noctx // killed below
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: uintptr(set | unix.CLONE_NEWUSER), UidMappings: ids.UIDs, GidMappings: ids.GIDs,
			Ptrace: true, Pdeathsig: syscall.SIGKILL,
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("create a user namespace: %w", err)
		}
		defer func() {
			err = errors.Join(err, cmd.Process.Kill())
			var killed *exec.ExitError
			if werr := cmd.Wait(); !errors.As(werr, &killed) {
				err = errors.Join(err, werr)
			}
		}()
		return fn(cmd.Process.Pid)
	})
}

// As runs fn as a user of the machine, only on the calling thread: use it inside Create or Do.
// Only the root of the user namespace that owns an IPC namespace may set its sysctls, whatever
// capabilities the caller has.
func As(uid int, fn func() error) (err error) {
	const same = ^uintptr(0) // -1 means leave it unchanged
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return fmt.Errorf("switch to user %d: %w", uid, errno)
	}
	defer func() {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); errno != 0 {
			err = errors.Join(err, fmt.Errorf("switch back to root: %w", errno))
		}
	}()
	return fn()
}
