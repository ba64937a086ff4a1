package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// RootMemory returns what the machine's processes and files use of its memory, and which part of that are
// files that nobody has used for a while.
func RootMemory() (usage, inactiveFile uint64, err error) {
	t, err := system()
	if err != nil {
		return 0, 0, err
	}
	if dir := t.v1("memory"); dir != "" {
		return t.rootMemoryV1(dir)
	}
	// The root of cgroup v2 counts nothing of its own.
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	usage, inactiveFile = parseMeminfo(string(data))
	return usage, inactiveFile, nil
}

// parseMeminfo reads /proc/meminfo (proc(5)): lines such as "MemFree:  1024 kB".
func parseMeminfo(doc string) (usage, inactiveFile uint64) {
	bytes := map[string]uint64{}
	for line := range strings.Lines(doc) {
		if f := strings.Fields(line); len(f) > 1 {
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				bytes[f[0]] = n << 10
			}
		}
	}
	total := bytes["MemTotal:"]
	return total - min(bytes["MemFree:"], total), bytes["Inactive(file):"]
}

func (t *Tree) rootMemoryV1(dir string) (usage, inactiveFile uint64, err error) {
	if usage, err = readInt(dir, "memory.usage_in_bytes"); err != nil {
		return 0, 0, err
	}
	stat, err := readTable(dir, "memory.stat")
	return usage, stat["total_inactive_file"], err
}

// pressureTriggers say what counts as waiting for memory with PSI: a tenth of a second or of two, in
// microseconds. Without CAP_SYS_RESOURCE the kernel takes only the second.
var pressureTriggers = []string{"some 100000 1000000", "some 200000 2000000"}

// WatchMemory calls wake, from a goroutine of its own, each time when the usage of a group crosses mark
// (cgroup v1: a threshold of memory.usage_in_bytes), or when its processes wait for memory (v2: a trigger
// of memory.pressure), until stop is called; exact is true for the former. "/" is the whole machine. Nothing
// is changed in the group.
func WatchMemory(path string, mark uint64, wake func()) (stop func(), exact bool, err error) {
	t, err := system()
	if err != nil {
		return nil, false, err
	}
	p := "/"
	if path != "/" {
		if p, err = clean(path); err != nil {
			return nil, false, err
		}
	}
	if dir := t.v1("memory"); dir != "" {
		stop, err = watchUsage(filepath.Join(dir, p), mark, wake)
		return stop, true, err
	}
	file := filepath.Join(t.v2(), p, "memory.pressure")
	if p == "/" {
		file = "/proc/pressure/memory"
	}
	stop, err = watchPressure(file, wake)
	return stop, false, err
}

// watchUsage registers an eventfd, as Documentation/admin-guide/cgroup-v1/memory.rst describes (9,
// Memory thresholds). The kernel forgets it when it is closed.
func watchUsage(dir string, mark uint64, wake func()) (func(), error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err == nil {
		err = write(dir, "cgroup.event_control", fmt.Sprintf("%d %d %d", fd, usage.Fd(), mark))
		err = errors.Join(err, usage.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory: %w", err), event.Close())
	}
	var done sync.WaitGroup
	done.Go(func() {
		for buf := make([]byte, 8); ; {
			if _, err := event.Read(buf); err != nil {
				return // closed
			}
			wake()
		}
	})
	return func() {
		_ = event.Close() // it holds nothing
		done.Wait()
	}, nil
}

// watchPressure sets a trigger, as Documentation/accounting/psi.rst describes.
func watchPressure(file string, wake func()) (func(), error) {
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		if err = setTrigger(f); err != nil {
			err = errors.Join(err, unix.Close(end))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory: %s: %w", file, err), f.Close())
	}
	var done sync.WaitGroup
	done.Go(func() { pollPressure(int(f.Fd()), end, wake) })
	return func() {
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // an eventfd that has just been made takes it
		done.Wait()
		_ = errors.Join(unix.Close(end), f.Close()) // they hold nothing
	}, nil
}

func setTrigger(f *os.File) (err error) {
	for _, t := range pressureTriggers {
		if _, err = f.WriteString(t + "\x00"); err == nil {
			return nil
		}
	}
	return err
}

// pollPressure waits for events of a trigger until end can be read or the trigger is gone.
func pollPressure(trigger, end int, wake func()) {
	for {
		fds := []unix.PollFd{{Fd: int32(trigger), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil, fds[1].Revents != 0, fds[0].Revents&unix.POLLERR != 0:
			return
		}
		wake()
	}
}
