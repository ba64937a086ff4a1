package apiserver

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/storage"
)

// writers create config maps until they are stopped.
type writers struct {
	mu       sync.Mutex
	names    []string // acknowledged
	revision int64    // the newest that a client has seen

	stop func()
}

func startWriters(t *testing.T, c kubernetes.Interface) *writers {
	t.Helper()
	w := &writers{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := w.write(ctx, c); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	w.stop = func() { cancel(); running.Wait() }
	t.Cleanup(w.stop)
	return w
}

func (w *writers) write(ctx context.Context, c kubernetes.Interface) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}, Data: map[string]string{"k": strings.Repeat("v", 1000)}}
	m, err := c.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names, w.revision = append(w.names, m.Name), max(w.revision, revision)
	return nil
}

func (w *writers) acknowledged() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.names)
}

// await waits until n more objects are acknowledged.
func (w *writers) await(t *testing.T, n int) {
	t.Helper()
	n += len(w.acknowledged())
	eventually(t, func() error {
		if have := len(w.acknowledged()); have < n {
			return fmt.Errorf("%d of %d writes", have, n)
		}
		return nil
	})
}

func save(t *testing.T, s *Server, path string) storage.Snapshot {
	t.Helper()
	snapshot, err := storage.SaveSnapshot(path, func(w io.Writer) error { return s.Snapshot(t.Context(), w) })
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// wantMaps wants these config maps, and their list at a revision that no client has seen yet.
func wantMaps(t *testing.T, s *Server, names []string, after int64) {
	t.Helper()
	list, err := admin(t, s).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, m := range list.Items {
		have[m.Name] = true
	}
	for _, n := range names {
		if !have[n] {
			t.Errorf("%s is lost", n)
		}
	}
	if revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64); err != nil || revision <= after {
		t.Errorf("after the restore the revision is %s (%v), before it was %d", list.ResourceVersion, err, after)
	}
}

func TestSnapshotWhileWritesGoOn(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "snapshot.db")
	s, stop := run(t, dir)
	defer stop()
	c := admin(t, s)
	w := startWriters(t, c)
	w.await(t, 100)
	before := w.acknowledged()
	saved := save(t, s, path)
	w.await(t, 50)
	w.stop()
	stop()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the snapshot: %v, %v", info.Mode(), err)
	}
	if again, err := storage.ReadSnapshot(path); err != nil || again != saved || saved.TotalKey < len(before) {
		t.Errorf("status: %+v, %v; saved as %+v", again, err, saved)
	}

	t.Run("into an empty folder", func(t *testing.T) {
		dir := t.TempDir()
		out, err := RestoreSnapshot(dir, storage.Restore{Snapshot: path, Bump: storage.DefaultBump})
		if err != nil || out.Aside != "" {
			t.Fatalf("%+v, %v", out, err)
		}
		wantPrivate(t, filepath.Join(dir, "etcd"))
		wantMaps(t, startIn(t, dir), before, w.revision)
	})
	t.Run("in place of newer data, twice", func(t *testing.T) {
		_, err := RestoreSnapshot(dir, storage.Restore{Snapshot: path, Bump: storage.DefaultBump})
		if err == nil || !strings.Contains(err.Error(), "--replace") {
			t.Fatalf("onto data, without being told to replace them: %v", err)
		}
		seen := w.revision
		for range 2 {
			out, err := RestoreSnapshot(dir, storage.Restore{Snapshot: path, Bump: storage.DefaultBump, Replace: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(out.Aside, "member", "wal")); err != nil {
				t.Errorf("the data that were there: %v", err)
			}
			s, stop := run(t, dir)
			wantMaps(t, s, before, seen)
			wantExpired(t, s, seen)
			seen = out.Now + 1
			makeOne := admin(t, s).CoreV1().ConfigMaps("default")
			if _, err := makeOne.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			stop()
		}
	})
}

// wantExpired wants a watch from an old revision to be told to list again.
func wantExpired(t *testing.T, s *Server, revision int64) {
	t.Helper()
	w, err := admin(t, s).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatInt(revision, 10)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ev := <-w.ResultChan()
	if err := apierrors.FromObject(ev.Object); ev.Type != watch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the restore: %s %v", ev.Type, err)
	}
}

// wantPrivate wants all below a folder to be its owner's alone, and nothing to be half made.
func wantPrivate(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if strings.HasPrefix(e.Name(), "restoring-") {
			t.Errorf("%s is left", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDamagedSnapshotChangesNothing(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "snapshot.db")
	s, stop := run(t, dir)
	defer stop()
	if err := makeMap(t, admin(t, s), "kept", 100); err != nil {
		t.Fatal(err)
	}
	save(t, s, path)
	stop()
	for name, d := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"emptied":       {func(path string) error { return os.Truncate(path, 0) }, "no checksum at its end"},
		"cut":           {func(path string) error { return os.Truncate(path, 8192+100) }, "no checksum at its end"},
		"cut at a page": {func(path string) error { return os.Truncate(path, 8192+32) }, "its checksum is wrong"},
		"overwritten":   {func(path string) error { return overwrite(path, 8192, []byte("garbage"), 1) }, "its checksum is wrong"},
		"no file":       {os.Remove, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "bad.db")
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(bad, text, 0o600)
			}
			if err == nil {
				err = d.spoil(bad)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = RestoreSnapshot(dir, storage.Restore{Snapshot: bad, Bump: storage.DefaultBump, Replace: true})
			if err == nil || !strings.Contains(err.Error(), d.want) || !strings.Contains(err.Error(), "bad.db") {
				t.Errorf("error: %v, want %q", err, d.want)
			}
			empty := t.TempDir()
			if _, err := RestoreSnapshot(empty, storage.Restore{Snapshot: bad}); err == nil {
				t.Error("restored into an empty folder")
			}
			if files, err := os.ReadDir(empty); err != nil || len(files) != 0 {
				t.Errorf("left behind: %v, %v", files, err)
			}
		})
	}
	entries, err := os.ReadDir(filepath.Join(dir, "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), "before") || strings.HasPrefix(e.Name(), "restoring-") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	s = startIn(t, dir)
	if _, err := admin(t, s).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A running server's data are not replaced under it, and a save that fails leaves the last snapshot.
func TestSnapshotsRefused(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "snapshot.db")
	s := startIn(t, dir)
	saved := save(t, s, path)
	_, err := RestoreSnapshot(dir, storage.Restore{Snapshot: path, Bump: storage.DefaultBump, Replace: true})
	if err == nil || !strings.Contains(err.Error(), "another process is using it") {
		t.Errorf("restore under a running server: %v", err)
	}
	_, err = storage.SaveSnapshot(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "no checksum") {
		t.Errorf("half a snapshot: %v", err)
	}
	if again, err := storage.ReadSnapshot(path); err != nil || again != saved {
		t.Errorf("the last snapshot: %+v, %v", again, err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

// The data of an external etcd that had reached its quota can be restored into ours, which has none:
// its alarm would refuse every write, and nobody could disarm it.
func TestSnapshotOfAFullEtcdTakesWritesAfterTheRestore(t *testing.T) {
	address := externalEtcd(t, 16<<20)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for i := 0; err == nil && i < 100; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("/registry/test/", i), strings.Repeat("x", 500<<10))
	}
	if err == nil {
		t.Fatal("the quota was not reached")
	}
	path := filepath.Join(t.TempDir(), "snapshot.db")
	_, err = storage.SaveSnapshot(path, func(w io.Writer) error {
		s, err := client.Snapshot(t.Context())
		if err == nil {
			_, err = io.Copy(w, s)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := RestoreSnapshot(dir, storage.Restore{Snapshot: path, Bump: storage.DefaultBump}); err != nil {
		t.Fatal(err)
	}
	if err := makeMap(t, admin(t, startIn(t, dir)), "m", 100); err != nil {
		t.Error(err)
	}
}
