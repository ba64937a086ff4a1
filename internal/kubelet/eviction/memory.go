package eviction

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"wherry.dev/internal/cgroup"
)

// WatchMemory has the kernel tell about the memory of a control group; cgroup.WatchMemory implements it.
type WatchMemory func(path string, mark uint64, wake func()) (stop func(), exact bool, err error)

// errUnwatched is why nothing is told: nobody asked the kernel.
var errUnwatched = errors.New("memory is not watched")

func (f WatchMemory) start(path string, mark uint64, wake func()) (func(), bool, error) {
	if f == nil {
		return nil, false, errUnwatched
	}
	return f(path, mark, wake)
}

// NodeMemory is that of the machine: its capacity, and the working set of everything on it.
type NodeMemory struct {
	Capacity int64
	Events   WatchMemory
}

// Look implements MemorySource.
func (n NodeMemory) Look() (Memory, error) {
	usage, inactive, err := cgroup.RootMemory()
	if err != nil {
		return Memory{}, err
	}
	working := int64(usage - min(inactive, usage))
	return Memory{Level{Free: max(n.Capacity-working, 0), Total: n.Capacity}, usage}, nil
}

// Watch implements MemorySource.
func (n NodeMemory) Watch(mark uint64, wake func()) (func(), bool, error) {
	return n.Events.start("/", mark, wake)
}

// GroupMemory is that of a control group with a limit; without one it has no level.
type GroupMemory struct {
	Path   string
	Events WatchMemory
}

// Look implements MemorySource.
func (g GroupMemory) Look() (Memory, error) {
	s, err := cgroup.ReadStats(g.Path)
	if err != nil {
		return Memory{}, err
	}
	limit := int64(s.MemoryLimit)
	return Memory{Level{Free: max(limit-int64(s.MemoryWorkingSet), 0), Total: limit}, s.MemoryUsage}, nil
}

// Watch implements MemorySource.
func (g GroupMemory) Watch(mark uint64, wake func()) (func(), bool, error) {
	return g.Events.start(g.Path, mark, wake)
}

// MachinePIDs counts the machine's tasks. Every thread takes a process ID.
func MachinePIDs() (Level, error) {
	most, err := number("/proc/sys/kernel/pid_max")
	if err != nil {
		return Level{}, err
	}
	if threads, err := number("/proc/sys/kernel/threads-max"); err == nil && threads > 0 {
		most = min(most, threads)
	}
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return Level{}, err
	}
	_, rest, _ := strings.Cut(string(data), "/")
	tasks, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(rest, " ", 2)[0]), 10, 64)
	if err != nil {
		return Level{}, fmt.Errorf("/proc/loadavg: %w", err)
	}
	return Level{Free: max(most-tasks, 0), Total: most}, nil
}

func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
