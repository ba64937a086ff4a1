package inbound

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketIsRootsAlone(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir, err := os.MkdirTemp("", "sock") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "s")
	for range 2 { // the second time there is one already
		l, err := ListenRoot(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		info, err := os.Stat(path)
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v", info, err)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenRoot(t.Context(), file); err == nil {
		t.Error("a socket in the place of a file")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	if _, err := ListenRoot(t.Context(), filepath.Join(dir, "no", "s")); err == nil {
		t.Error("a socket in a folder that is not there")
	}
}
