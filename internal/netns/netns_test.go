package netns

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func inode(t *testing.T, path string) string {
	t.Helper()
	s, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCreateDoRemove(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	before := inode(t, "/proc/self/ns/net")
	dir := filepath.Join(t.TempDir(), "ns")
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	var created string
	err := Create(dir, []Kind{Net, IPC, UTS}, func() error {
		created = inode(t, "/proc/thread-self/ns/net")
		return SetSysctl("net.ipv4.ip_forward", "1")
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []Kind{Net, IPC, UTS} {
		if ok, err := Pinned(Path(dir, k)); !ok || err != nil {
			t.Errorf("%s is not pinned: %v", k, err)
		}
	}
	err = Do(func() error {
		if got := inode(t, "/proc/thread-self/ns/net"); got != created || got == before {
			t.Errorf("Do ran in %s, want %s", got, created)
		}
		return nil
	}, Path(dir, Net), Path(dir, UTS))
	if err != nil {
		t.Fatal(err)
	}
	if got := inode(t, "/proc/self/ns/net"); got != before {
		t.Errorf("the main thread is in %s now", got)
	}
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := Pinned(Path(dir, Net)); ok || err != nil {
		t.Errorf("still pinned after Remove: %v, %v", ok, err)
	}
}

func TestCreateUndoesItselfOnError(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "ns")
	boom := errors.New("boom")
	if err := Create(dir, []Kind{Net}, func() error { return boom }); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("the folder is still there")
	}
	if err := Create(dir, []Kind{Net}, func() error { panic("boom") }); err == nil {
		t.Error("a panic was lost")
	}
}

func TestSysctlPath(t *testing.T) {
	for in, want := range map[string]string{
		"net.ipv4.ip_forward":          "/proc/sys/net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.1/forward": "/proc/sys/net/ipv4/conf/eth0.1/forward",
		"net.ipv4.conf.eth0/1.forward": "/proc/sys/net/ipv4/conf/eth0.1/forward",
	} {
		if got, err := SysctlPath(in); got != want || err != nil {
			t.Errorf("SysctlPath(%q) = %q, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "/etc/passwd", "../x", "a/../../etc", "net/"} {
		if got, err := SysctlPath(bad); err == nil {
			t.Errorf("SysctlPath(%q) = %q, want an error", bad, got)
		}
	}
}

func FuzzSysctlPath(f *testing.F) {
	f.Add("net.ipv4.ip_forward")
	f.Add("../../etc/passwd")
	f.Fuzz(func(t *testing.T, name string) {
		p, err := SysctlPath(name)
		if err != nil {
			return
		}
		if rel, err := filepath.Rel("/proc/sys", p); err != nil || !filepath.IsLocal(rel) {
			t.Errorf("SysctlPath(%q) = %q leaves /proc/sys", name, p)
		}
	})
}

// TestGoexitInsideANamespace: a test that fails inside a namespace does not hang.
func TestGoexitInsideANamespace(t *testing.T) {
	if err := Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("no error")
	}
}
