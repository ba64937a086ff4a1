package monitor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/oci"
)

// OfBundle opens the conmon of a bundle. It returns nil if conmon has exited or there is none.
func OfBundle(b oci.Bundle) (*Process, error) {
	pid, err := oci.ReadPID(b.MonitorPIDFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return openConmon(pid, b.ID)
}

// KillBundle kills the processes of a bundle, conmon first. home is the cgroup in which conmons start.
// halfMade marks a container whose creation was cut off by a crash: conmon may be about to create it,
// and its PID may not have been written yet.
func KillBundle(home string, b oci.Bundle, halfMade bool) error {
	if pid, err := oci.ReadPID(b.MonitorPIDFile()); err == nil {
		if _, err := killMonitor(pid, b.ID); err != nil {
			return err
		}
	}
	if halfMade {
		if err := killMakers(home, b.ID); err != nil {
			return err
		}
	}
	if !cgroup.Exists(b.Cgroup) {
		return nil
	}
	return cgroup.Kill(b.Cgroup)
}

// killMakers kills every conmon and runtime that works on a container. They all start in the
// cgroup home; what they start may have moved to the container's.
func killMakers(home, id string) error {
	for {
		pids, err := cgroup.Procs(home)
		if err != nil {
			return err
		}
		found := false
		for _, pid := range pids {
			killed, err := killMonitor(pid, id)
			if err != nil {
				return err
			}
			found = found || killed
		}
		if !found {
			return nil
		}
	}
}

// killMonitor kills the process if its command line names the container, and waits until it is
// gone.
func killMonitor(pid int, id string) (bool, error) {
	p, err := openConmon(pid, id)
	if err != nil || p == nil {
		return false, err
	}
	defer func() { _ = p.Close() }()
	if err := p.Signal(unix.SIGKILL); err != nil {
		return false, err
	}
	return true, p.Wait()
}
