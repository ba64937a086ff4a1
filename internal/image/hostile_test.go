package image_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/image"
	"wherry.dev/test/hostile"

	"wherry.dev/test/disks"
)

// makeTarget makes a folder that images try to change, and a check that nothing changed.
func makeTarget(t *testing.T) (dir string, check func(what string)) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"canary0", "canary1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("root's own\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	state := func() (out string) {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			out += path + " " + info.Mode().String()
			if info.Mode().IsRegular() {
				data, err := os.ReadFile(path)
				out += string(data)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := state()
	return dir, func(what string) {
		t.Helper()
		if now := state(); now != before {
			t.Fatalf("%s changed the machine:\n%s\nwas\n%s", what, now, before)
		}
	}
}

func refuses(t *testing.T, what, want string, err error) {
	t.Helper()
	if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %q is not in %v", what, want, err)
	}
	if err != nil && len(err.Error()) > 16<<10 {
		t.Errorf("%s: an error of %d bytes", what, len(err.Error()))
	}
}

// However an image tries to get out of its folder, nothing on the machine changes, and an image
// that is refused leaves nothing.
func TestHostileImages(t *testing.T) {
	target, unchanged := makeTarget(t)
	srv, s := plain(t), open(t, t.TempDir())
	all := hostile.Images(t, target)
	maps.Copy(all, hostile.Configs(t))
	for name, c := range all {
		ref := srv.Push(t, name+":1", c.Image)
		_, err := s.Pull(t.Context(), ref, image.PullOptions{})
		unchanged(name)
		refuses(t, name, c.Refused, err)
		if err == nil {
			if err := s.Remove(t.Context(), ref); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		checkEmpty(t, s)
	}
}

// A layer of a few kilobytes that expands to more than the disk holds used to take the space of
// everything that runs there: a kubelet evicts the pods one after the other, and that does not
// remove the image.
func TestBombLeavesRoomForOthers(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=256m,nr_inodes=20000")
	const keep, keepInodes = 64 << 20, 2000
	var least disk.Room
	s := openWith(t, dir, image.Config{KeepFree: func(r disk.Room) (bytes, inodes uint64) {
		if least.Total == 0 {
			least = r
		}
		least.Free, least.FreeInodes = min(least.Free, r.Free), min(least.FreeInodes, r.FreeInodes)
		return keep, keepInodes
	}})
	before, err := disk.Look(dir)
	if err != nil {
		t.Fatal(err)
	}
	srv := plain(t)
	for name, c := range hostile.Bombs(t, 512<<20, 30_000) {
		_, err := s.Pull(t.Context(), srv.Push(t, name+":1", c.Image), image.PullOptions{})
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), c.Refused) {
			t.Errorf("%s: %v", name, err)
		}
		checkEmpty(t, s)
		now, err := disk.Look(dir)
		if err != nil || now.Free != before.Free || now.FreeInodes != before.FreeInodes {
			t.Errorf("%s: %+v were free, now %+v, %v", name, before, now, err)
		}
	}
	if least.Free < keep-1<<20 || least.FreeInodes < keepInodes-1000 {
		t.Errorf("down to %d bytes and %d inodes", least.Free, least.FreeInodes)
	}
	pull(t, s, srv.Push(t, "witness:1", twoLayers(t)))
}

// A pull from a registry that lies fails, with a reason, and costs neither memory nor disk. A
// pull from one that goes on for ever can be cancelled.
func TestRegistriesThatLie(t *testing.T) {
	srv := plain(t)
	ref := srv.Push(t, "demo:1", hostile.Honest(t))
	for name, lie := range hostile.Lies(srv.Host) {
		t.Run(name, func(t *testing.T) {
			s := openWith(t, t.TempDir(), image.Config{ProgressTimeout: 2500 * time.Millisecond, CertsDirs: []string{}})
			srv.On(lie.Hook)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if lie.Refused == "" {
				defer time.AfterFunc(2*time.Second, cancel).Stop()
			}
			_, err := s.Pull(ctx, ref, image.PullOptions{})
			if err == nil {
				t.Error("no error")
			}
			refuses(t, name, lie.Refused, err)
			checkEmpty(t, s)
			srv.On(nil)
			pull(t, s, ref)
		})
	}
}
