package ownlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/disks"
)

const envChild = "OWNLOG_TEST_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(envChild); path != "" {
		child(path)
	}
	os.Exit(m.Run())
}

// child logs to standard output and error, writes until the log was renamed, and panics.
func child(path string) {
	l := Log{Path: path, Size: 10000, Keep: 2, FDs: []int{1, 2}}
	if !l.IsOwn() {
		panic("not its own log")
	}
	go func() { panic(l.Run(context.Background(), func(error) {})) }()
	for i := range 5000 {
		fmt.Fprintf(os.Stdout, "line %d\n", i)
	}
	for {
		if info, err := os.Stat(path); err == nil && info.Size() < 10000 && l.IsOwn() {
			panic("the last words")
		}
		time.Sleep(time.Millisecond)
	}
}

// started returns a log with a descriptor of its own, and a function that writes to it.
func started(t *testing.T, dir string, size int64, keep int) (l Log, write func(string) error) {
	t.Helper()
	path := filepath.Join(dir, "wherry.log")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l = Log{Path: path, Size: size, Keep: keep, FDs: []int{int(f.Fd())}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, func(err error) { t.Logf("told: %v", err) }) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, f.Close()); err != nil {
			t.Error(err)
		}
	})
	return l, func(s string) error { _, err := unix.Write(l.FDs[0], []byte(s)); return err }
}

// until waits for something that happens in the background.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestLogIsRenamedAndNothingIsLost(t *testing.T) {
	l, write := started(t, t.TempDir(), 1000, 3)
	line := 0
	for round := range 6 {
		for size := 0; size < 1200; line++ {
			text := fmt.Sprintf("line %d\n", line)
			size += len(text)
			if err := write(text); err != nil {
				t.Fatal(err)
			}
		}
		until(t, fmt.Sprintf("round %d: the file is as large as before", round), func() bool {
			info, err := os.Stat(l.Path)
			return err == nil && info.Size() < 1000 && l.IsOwn()
		})
	}
	var all strings.Builder
	for i := 3; i >= 0; i-- {
		info, err := os.Lstat(l.name(i))
		if err != nil || info.Mode() != 0o600 {
			t.Fatal(info, err)
		}
		text, err := os.ReadFile(l.name(i))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	lines := strings.Split(strings.TrimSpace(all.String()), "\n")
	for i, got := range lines {
		if want := fmt.Sprintf("line %d", line-len(lines)+i); got != want {
			t.Fatalf("%q where %q is to be", got, want)
		}
	}
	if _, err := os.Stat(l.name(4)); err == nil {
		t.Error("too many files are kept")
	}
}

// TestFullDisk: a line is lost, and everything works again once there is space.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=64k,nr_inodes=5")
	l, write := started(t, dir, 20<<10, 2)
	for _, f := range []string{"other", "more", "last"} { // no inode is left for a new log
		if err := os.WriteFile(filepath.Join(dir, f), bytes.Repeat([]byte("x"), 8<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var full error
	for range 100 {
		full = errors.Join(full, write(strings.Repeat("y", 1023)+"\n"))
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", full)
	}
	if err := os.Remove(filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	until(t, "with room again the file is not renamed", func() bool {
		_ = write("z\n")
		info, err := os.Stat(l.Path)
		return err == nil && info.Size() < 20<<10
	})
}

// TestPanicIsInTheLog: also after renames.
func TestPanicIsInTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wherry.log")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), envChild+"="+path), f, f
	if err := errors.Join(cmd.Start(), f.Close()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it panics
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "panic: the last words") || !strings.Contains(string(text), "goroutine") {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Errorf("it was never renamed: %v", err)
	}
}
