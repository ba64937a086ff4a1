// Package disk is where the runtime keeps things: the folders of an instance, the records in them, and
// how much space a folder takes.
package disk

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/mount"
)

// Layout is where an instance keeps what it has.
type Layout struct {
	Root  string // durable
	State string // not needed after a reboot
}

// Sandboxes returns the folder with the records of sandboxes.
func (l Layout) Sandboxes() string { return filepath.Join(l.Root, "sandboxes") }

// Containers returns the folder with the records and writable layers of containers.
func (l Layout) Containers() string { return filepath.Join(l.Root, "containers") }

// Skeletons returns the folder with the lowest layers of root file systems.
func (l Layout) Skeletons() string { return filepath.Join(l.Root, "skeletons") }

// SandboxState returns the folder with the namespaces and shared files of sandboxes.
func (l Layout) SandboxState() string { return filepath.Join(l.State, "s") }

// ContainerState returns the folder with the bundles of containers.
func (l Layout) ContainerState() string { return filepath.Join(l.State, "c") }

// Exits returns the folder in which conmon writes exit codes.
func (l Layout) Exits() string { return filepath.Join(l.State, "exits") }

// RuntimeState returns the folder in which the OCI runtime of a handler keeps its state.
func (l Layout) RuntimeState(handler string) string { return filepath.Join(l.State, "oci", handler) }

// exitRoom is enough for 4096 exit files of one page each.
const exitRoom = 16 << 20

// Make makes the folders that every verb relies on.
func (l Layout) Make() error {
	for _, d := range []string{l.Sandboxes(), l.Containers(), l.SandboxState(), l.ContainerState()} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return err
		}
	}
	// Exit files get space of their own: conmon tries only once to write an exit code, and a pod
	// can fill the state folder through its /etc/hosts.
	return mount.Tmpfs(l.Exits(), 0o711, exitRoom)
}

// Folders returns the names of the folders in dir.
func Folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// WriteFile is os.WriteFile, but makes the folder if it is missing.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// WriteProgram writes a file that is executed soon. It keeps the process from forking meanwhile:
// a child forked while the file is open for writing has it open, too, until its own exec, and the
// kernel refuses to run a file that is open for writing (ETXTBSY).
func WriteProgram(path string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return WriteFile(path, program, 0o755)
}

// Exists reports whether there is anything at path; it does not follow a link.
func Exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// NewID returns an ID for a sandbox or container: 256 random bits.
func NewID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
