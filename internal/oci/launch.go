package oci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cgroup"
)

// placement is where a child process starts.
type placement struct {
	tasks string // v1 cgroups to join; "" means none
	clone string // cgroup in the v2 tree; "" means none
	view  bool   // use a mount namespace without the v2 tree of a hybrid machine
}

// startIn starts the command on a thread that has joined the cgroups, so that the child starts
// there and nothing has to be moved. The thread is discarded afterwards.
func (r *Runtime) startIn(cmd *exec.Cmd, p placement) error {
	dir, err := r.cloneInto(cmd, p.clone)
	if err != nil {
		return err
	}
	if dir != nil {
		defer func() { _ = dir.Close() }()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- r.place(cmd, p)
	}()
	return <-done
}

func (r *Runtime) place(cmd *exec.Cmd, p placement) error {
	if p.view {
		if err := r.enterView(); err != nil {
			return err
		}
	}
	if p.tasks != "" && r.tree.Mode() != cgroup.V2 {
		files, err := r.tree.TaskFiles(p.tasks)
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := os.WriteFile(f, []byte("0"), 0); err != nil {
				return fmt.Errorf("join cgroup: %w", err)
			}
		}
	}
	return cmd.Start()
}

// cloneInto makes the kernel start the child in the cgroup of the v2 tree (CLONE_INTO_CGROUP,
// since Linux 5.7).
func (r *Runtime) cloneInto(cmd *exec.Cmd, group string) (*os.File, error) {
	if group == "" {
		return nil, nil
	}
	path, err := r.tree.UnifiedDir(group)
	if err != nil || path == "" {
		return nil, err
	}
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	return dir, nil
}

// view is a thread that holds a copy of our mount namespace in which the v2 tree of a hybrid
// machine is not mounted. crun refuses a hybrid machine as long as it sees a controller there,
// even if it does not manage cgroups; without that mount it takes the machine for plain v1. The
// copy lives only as long as crun runs, so that it does not keep other pods' mounts busy.
type view struct {
	tid  int
	stop chan struct{}
	done chan struct{}
}

// openView returns nil if crun needs no view.
func (r *Runtime) openView() (*view, error) {
	if !r.needsView() {
		return nil, nil
	}
	v := &view{stop: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		defer close(v.done)
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		v.tid = unix.Gettid()
		err := r.enterView()
		ready <- err
		if err == nil {
			<-v.stop
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return v, nil
}

func (r *Runtime) needsView() bool { return r.own && r.tree.Mode() == cgroup.Hybrid }

func (v *view) path() string { return fmt.Sprintf("/proc/%d/task/%d/ns/mnt", os.Getpid(), v.tid) }

func (v *view) close() {
	if v == nil {
		return
	}
	close(v.stop)
	<-v.done
}

// enterView moves the calling thread into a copy of the mount namespace.
func (r *Runtime) enterView() error {
	if !r.needsView() {
		return nil
	}
	dir, err := r.tree.UnifiedDir("/x")
	if err != nil {
		return err
	}
	dir = filepath.Dir(dir)
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("copy the mount namespace: %w", err)
	}
	// Make it private first: on a shared parent, the unmount would propagate to the machine
	// itself.
	parent := filepath.Dir(dir)
	if err := unix.Mount("", parent, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make %s private: %w", parent, err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("hide %s: %w", dir, err)
	}
	return nil
}
