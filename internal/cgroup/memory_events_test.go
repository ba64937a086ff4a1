package cgroup

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMemoryOfTheMachine(t *testing.T) {
	usage, inactive, err := RootMemory()
	if err != nil || usage == 0 || inactive >= usage {
		t.Errorf("%d used, %d of it inactive, %v", usage, inactive, err)
	}
}

func TestParseMeminfo(t *testing.T) {
	usage, inactive := parseMeminfo("MemTotal:       1000 kB\nMemFree:          300 kB\nInactive(file):   200 kB\nHugePages_Total:       0\nodd\n")
	if usage != 700<<10 || inactive != 200<<10 {
		t.Errorf("%d used, %d of it inactive", usage, inactive)
	}
}

// TestWatchMemory: the kernel tells when a group's usage crosses a mark, and nothing stays behind.
func TestWatchMemory(t *testing.T) {
	tree, err := System()
	if err != nil || !tree.HasV1("memory") {
		t.Skip("thresholds are cgroup v1's", err)
	}
	path := group(t)
	if err := tree.Ensure(path, nil); err != nil {
		t.Fatal(err)
	}
	woken := make(chan struct{}, 1)
	stop, exact, err := WatchMemory(path, 32<<20, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	if err != nil || !exact {
		t.Fatal(exact, err)
	}
	defer stop()
	files, err := tree.TaskFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	script := ""
	for _, f := range files {
		script += "echo 0 > " + f + "; "
	}
	cmd := exec.Command("sh", "-c", script+"head -c 100M /dev/zero | tail -c 100M > /dev/null")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Error("the kernel told nothing")
	}
	for _, path := range []string{"/", path} {
		stop, _, err := WatchMemory(path, 1<<50, func() {})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		stop()
	}
}

// TestWatchPressure: a trigger can be set and taken back.
func TestWatchPressure(t *testing.T) {
	const file = "/proc/pressure/memory"
	if unix.Access(file, unix.W_OK) != nil {
		t.Skip("the kernel does not count PSI")
	}
	stop, err := watchPressure(file, func() {})
	if err != nil {
		t.Fatal(err)
	}
	stop()
}
