package oci

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A container that exited, and was cleaned up, before Start had removed the FIFO used to be
// reported as not started.
func TestStartOfAContainerThatEndsAtOnce(t *testing.T) {
	r := &Runtime{Name: "crun", Path: "/bin/false", State: t.TempDir(), crun: true}
	for range 300 {
		dir := filepath.Dir(r.fifo("c"))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(r.fifo("c"), 0o600); err != nil {
			t.Fatal(err)
		}
		process, err := os.OpenFile(r.fifo("c"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := process.Read(make([]byte, 1))
			_ = os.RemoveAll(dir)
			ended <- err
		}()
		if err := r.Start(t.Context(), Bundle{ID: "c"}); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if err := process.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
