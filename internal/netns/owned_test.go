package netns

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCreateOwned(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "ns")
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 70000, Size: 1000}}
	var inside string
	err := CreateOwned(dir, []Kind{Net, UTS}, IDMap{one, one}, func() error {
		inside = inode(t, "/proc/thread-self/ns/net")
		return errors.Join(SetSysctl("net.ipv4.ip_unprivileged_port_start", "0"), unix.Sethostname([]byte("inside")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if inside == inode(t, "/proc/self/ns/net") {
		t.Error("inside ran in the machine's network")
	}
	f, err := os.Open(Path(dir, Net))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(owner) }()
	var have, want unix.Stat_t
	if err := errors.Join(unix.Fstat(owner, &have), unix.Stat(Path(dir, User), &want)); err != nil || have.Ino != want.Ino {
		t.Errorf("the network's owner is %d, want %d (%v)", have.Ino, want.Ino, err)
	}
	bad := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 0, HostID: 5, Size: 1}}
	if err := CreateOwned(dir+"2", nil, IDMap{bad, bad}, nil); err == nil || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("a mapping that overlaps: %v", err)
	}
	if _, err := os.Stat(dir + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the folder is still there")
	}
}
