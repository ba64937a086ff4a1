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

// NodeMemory is that of the machine: its capacity, without huge pages, and the working set of everything on it.
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
	huge, err := hugePages("/proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	return Memory{Level{Free: free(n.Capacity, usage, inactive, huge), Total: n.Capacity}, usage}, nil
}

// free returns how much memory is left. Huge pages are taken from it when they are set aside, and counted for nobody.
func free(capacity int64, usage, inactive uint64, huge int64) int64 {
	working := int64(usage - min(inactive, usage))
	return max(capacity-working-huge, 0)
}

// hugePages returns the bytes in huge pages of all sizes. There may be more of them at any time.
func hugePages(meminfo string) (int64, error) {
	data, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "Hugetlb:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", meminfo, err)
			}
			return n * 1024, nil
		}
	}
	return 0, nil // a kernel without them
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
