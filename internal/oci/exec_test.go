package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A command whose time ran out just while its runtime wrote its PID used to keep running: the
// file was there, but empty.
func TestKillOfACommandWhosePIDIsBeingWritten(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pid")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- (&Exec{cmd: cmd, dir: dir}).Kill() }()
	if err := os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(errors.Join(err, cmd.Process.Kill()))
	}
	_ = cmd.Wait() // its status says how it exited
	if ws, ok := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || ws.Signal() != unix.SIGKILL {
		t.Errorf("ended by %v", cmd.ProcessState)
	}
}
