package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wherry.dev/test/disks"
)

// smallDisk mounts a file system of its own.
func smallDisk(t *testing.T, kind string, size int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := disks.Mount(t.Context(), kind, dir, t.TempDir(), size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // a server that has failed keeps its files open
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func open(t *testing.T, dir string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// openUntilEnd opens a backend that is closed when the test ends.
func openUntilEnd(t *testing.T, dir string) *Backend {
	t.Helper()
	b := open(t, dir)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func fillUp(t *testing.T, path string) {
	t.Helper()
	if err := disks.Fill(path); err != nil {
		t.Fatal(err)
	}
}

// fullDisk returns a backend on a disk that is full to the last byte, even after the backend has
// given room back on it.
func fullDisk(t *testing.T, kind string) (b *Backend, hog string) {
	t.Helper()
	dir := smallDisk(t, kind, 400<<20)
	b = openUntilEnd(t, filepath.Join(dir, "etcd"))
	hog = filepath.Join(dir, "hog")
	fillUp(t, hog)
	if _, err := b.Room(); err == nil {
		t.Fatal("the disk is not full")
	}
	fillUp(t, hog)
	return b, hog
}

func put(t *testing.T, b *Backend, i, size int) error {
	t.Helper()
	_, err := b.client.Put(t.Context(), fmt.Sprint(prefix, "/x/", i%50), strings.Repeat("x", size))
	return err
}

// What is permitted on a full disk may be written without end: it goes into what etcd's files hold,
// and outdated data gives its room to new data.
func TestFullDiskTakesWhatIsPermittedWithoutEnd(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			b, _ := fullDisk(t, kind)
			written := 0
			for i := 0; written < 200<<20; i++ {
				size := 1 << (10 + i%11) // up to 1 MiB
				if err := put(t, b, i, size); err != nil {
					t.Fatalf("after %d MiB: %v", written>>20, err)
				}
				written += size
			}
			if b.embedded.space.log.stuck() {
				t.Error("etcd has no next file for its log")
			}
			logs, err := b.embedded.space.log.segments()
			if err != nil || len(logs) > 2 {
				t.Errorf("%d files of the log are kept on a full disk, %v", len(logs), err)
			}
		})
	}
}

// A disk may have room but no inode for another file. Then nothing new is accepted either, and what
// is permitted goes on in the existing files.
func TestDiskWithoutInodes(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=400m,nr_inodes=1000")
	b := openUntilEnd(t, filepath.Join(dir, "etcd"))
	var taken []string
	var err error
	for i := 0; err == nil; i++ {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err = os.WriteFile(path, nil, 0o600); err == nil {
			taken = append(taken, path)
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := b.Room(); err == nil || !strings.Contains(err.Error(), " and 0 inodes free") {
		t.Errorf("without inodes: %v", err)
	}
	written := 0
	for i := 0; written < 8<<20; i++ {
		if err := put(t, b, i, 64<<10); err != nil {
			t.Fatalf("after %d KiB: %v", written>>10, err)
		}
		written += 64 << 10
	}
	for _, path := range taken {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Room(); err != nil {
		t.Errorf("with inodes again: %v", err)
	}
	if err := put(t, b, 0, 1<<20); err != nil {
		t.Error(err)
	}
	if err := b.RestartReason(); err != nil {
		t.Errorf("etcd has failed: %v", err)
	}
}

// Many write at the same time, past the end of a file of the log.
func TestFullDiskTakesWritesSideBySide(t *testing.T) {
	b, _ := fullDisk(t, "tmpfs")
	var g errgroup.Group
	for i := range 100 {
		g.Go(func() error { return put(t, b, i%10, 1<<20) })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// When etcd starts, it cuts off what is held behind the end of the log's present file. A start that
// finds the next files already made must hold that room again all the same.
func TestRoomBehindTheLogIsHeldAfterAKill(t *testing.T) {
	dir := t.TempDir()
	if _, refused := written(t, dir, 5); refused {
		t.Fatal("refused on an empty disk")
	}
	b := open(t, dir)
	log := b.embedded.space.log
	files, err := log.segments()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, log.next()...) {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Blocks*512 < segmentBytes+behindBytes {
			t.Errorf("%s holds %d bytes, %v", path, st.Blocks*512, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// If there is not even room for a snapshot, writes are refused before etcd fails for lack of room,
// and go on when there is some.
func TestNoRoomForASnapshotIsARefusal(t *testing.T) {
	b, hog := fullDisk(t, "tmpfs")
	if err := b.embedded.space.reserve.GiveBack(); err != nil {
		t.Fatal(err)
	}
	fillUp(t, hog)
	var err error
	written := 0
	for ; err == nil && written < 64<<20; written += 100 << 10 {
		err = put(t, b, written, 100<<10)
	}
	if apierrors.ReasonForError(err) != ReasonInsufficientStorage || written < renewAfter {
		t.Errorf("after %d KiB: %v", written>>10, err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if err := put(t, b, 0, 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := b.RestartReason(); err != nil {
		t.Errorf("etcd has failed: %v", err)
	}
}

// etcd gives up when it cannot save a snapshot, although everything is in its log. The log is kept
// until there is a later snapshot, and a start from it finds what was written.
func TestSnapshotWithoutRoomIsMadeLater(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			b, hog := fullDisk(t, kind)
			e := b.embedded
			if err := e.space.reserve.GiveBack(); err != nil {
				t.Fatal(err)
			}
			fillUp(t, hog)
			fillUp(t, filepath.Join(filepath.Dir(e.space.database), "more")) // the room that the other file could not take
			for i := range 3 {
				if err := e.idle(t.Context(), snapshotEvery+1); err != nil {
					t.Fatal(err)
				}
				if err := put(t, b, i, 1<<10); err != nil {
					t.Fatal(err)
				}
			}
			if e.end.missed.Load() == 0 || !e.keepsLog() {
				t.Fatal("no snapshot was missed, or the log is not kept")
			}
			if err := e.space.log.drop(os.Remove); !errors.Is(err, errNoneReleased) {
				t.Errorf("a file of the log is dropped: %v", err)
			}
			copied := t.TempDir() // as a crash would leave it now
			if err := os.CopyFS(copied, os.DirFS(b.cfg.Dir)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(hog), e.idle(t.Context(), 2*snapshotEvery)); err != nil {
				t.Fatal(err)
			}
			if e.keepsLog() {
				t.Error("the log is kept after a later snapshot")
			}
			if err := b.RestartReason(); err != nil {
				t.Errorf("etcd has failed: %v", err)
			}
			again := open(t, copied)
			for i := range 3 {
				got, err := again.client.KV.Get(t.Context(), fmt.Sprint(prefix, "/x/", i))
				if err != nil || len(got.Kvs) != 1 {
					t.Errorf("write %d is lost: %v", i, err)
				}
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// etcd may release a file of its log for a snapshot that it misses just while drop checks whether
// one was missed.
func TestLogReleasedByASnapshotJustMissedStays(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"0.wal", "1.wal"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	etcds, err := fileutil.TryLockFile(filepath.Join(dir, "0.wal"), os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	missed := false
	log := logFiles{dir: dir, kept: func() bool {
		was := missed
		if !missed {
			missed = true
			if err := etcds.Close(); err != nil {
				t.Error(err)
			}
		}
		return was
	}}
	for range 2 {
		if err := log.drop(os.Remove); !errors.Is(err, errNoneReleased) {
			t.Errorf("a file is dropped that a start wants: %v", err)
		}
	}
}

// etcd writes a snapshot's file before the record of it in the log, and a start relies on the
// record: a kill in between leaves a file that counts for nothing.
func TestSnapshotWithoutARecordIsNone(t *testing.T) {
	dir := smallDisk(t, "tmpfs", 400<<20)
	dir = filepath.Join(dir, "etcd")
	b := open(t, dir)
	if err := b.embedded.idle(t.Context(), snapshotEvery+1); err != nil {
		t.Fatal(err)
	}
	made := b.embedded.space.snapshot()
	for deadline := time.Now().Add(time.Minute); made == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		made = b.embedded.space.snapshot() // etcd makes it beside its other work
	}
	if err := b.Close(); err != nil || made == 0 {
		t.Fatal(made, err)
	}
	left := filepath.Join(filepath.Dir(b.embedded.space.database), fmt.Sprintf("%016x-%016x.snap", 2, made+snapshotEvery/2))
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b = openUntilEnd(t, dir)
	e := b.embedded
	if now := e.space.snapshot(); now != made {
		t.Errorf("the last snapshot was %d, is %d", made, now)
	}
	e.end.missed.Store(made + 1)
	if err := e.idle(t.Context(), snapshotEvery/3*2); err != nil {
		t.Fatal(err)
	}
	if !e.keepsLog() {
		t.Error("the log is not kept, and there is no later snapshot")
	}
}

// grab takes every free byte of a disk until it is released. Again and again it gives up some
// bytes, as many as up says, for a moment.
func grab(t *testing.T, path string, up int64) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error {
		for ctx.Err() == nil {
			if err := errors.Join(disks.Fill(path), giveUp(path, up)); err != nil {
				return err
			}
		}
		return nil
	})
	return func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func giveUp(path string, n int64) error {
	info, err := os.Stat(path)
	if err != nil || n == 0 {
		return err
	}
	err = os.Truncate(path, max(0, info.Size()-n))
	time.Sleep(time.Millisecond)
	return err
}

// Room for a snapshot is held, but each time it is given back for one, somebody else takes it at
// once. Then writes are refused, and trying does not use up the log, without which etcd ends.
func TestTryingForASnapshotUsesUpNoLog(t *testing.T) {
	b, hog := fullDisk(t, "tmpfs")
	e := b.embedded
	if err := e.space.reserve.GiveBack(); err != nil {
		t.Fatal(err)
	}
	fillUp(t, hog)
	e.space.dir = smallDisk(t, "tmpfs", refuseBelow/2) // which has room, but little
	e.space.reserve.Path = filepath.Join(e.space.dir, "reserve")
	began := e.etcd.Server.AppliedIndex()
	refused := 0
	for i := 0; refused < 5; i++ {
		switch err := put(t, b, i, 1<<20); {
		case apierrors.ReasonForError(err) == ReasonInsufficientStorage:
			refused++
		case err != nil || i > 50:
			t.Fatalf("after %d: %v", i, err)
		}
	}
	if made := e.etcd.Server.AppliedIndex() - began; made > 2*snapshotEvery {
		t.Errorf("there are %d more entries of the log", made)
	}
	if err := b.RestartReason(); err != nil {
		t.Errorf("etcd has failed: %v", err)
	}
}

// If there is no room behind the log's end, trying to make a snapshot would use up what is left
// before the end.
func TestNothingIsTriedWithoutRoomBehindTheLog(t *testing.T) {
	b, hog := fullDisk(t, "tmpfs")
	e := b.embedded
	if err := errors.Join(e.space.reserve.GiveBack(), disks.TakeHeld(b.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	fillUp(t, hog)
	e.space.dir = smallDisk(t, "tmpfs", refuseBelow/2) // which has room for a snapshot, but little
	e.space.mu.Lock()
	e.space.short = true // as after a start
	e.space.mu.Unlock()
	began := e.etcd.Server.AppliedIndex()
	for i := range 3 {
		if err := put(t, b, i, 100<<10); apierrors.ReasonForError(err) != ReasonInsufficientStorage {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if made := e.etcd.Server.AppliedIndex() - began; made > idleMoment {
		t.Errorf("there are %d more entries of the log", made)
	}
}

// etcd also writes when it is closed. If it fails because of that, or at any moment of it, nobody
// waits for what is left of it.
func TestCloseOfAnEtcdThatFailsMeanwhileEnds(t *testing.T) {
	dir := smallDisk(t, "tmpfs", 400<<20)
	b := open(t, filepath.Join(dir, "etcd"))
	held := b.embedded.etcd.Server.Backend().BatchTx()
	held.LockOutsideApply() // a lock that a stuck goroutine of etcd holds for ever
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case <-b.embedded.etcd.Server.StoppingNotify():
	case err := <-closed:
		t.Fatalf("etcd is closed while its database is locked: %v", err)
	}
	b.embedded.end.fail(errors.New("no space left on device"))
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("close waits for what is left of etcd")
	}
	held.Unlock()
}

// A child that is being forked has the lock's file open until it executes its program.
func TestDataAreFreeAfterCloseWhileAChildIsForked(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	b, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(b.embedded.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// The disk may be full shortly before etcd makes a snapshot by itself.
func TestDiskThatIsFullBeforeASnapshot(t *testing.T) {
	dir := smallDisk(t, "ext4", 400<<20)
	b := openUntilEnd(t, filepath.Join(dir, "etcd"))
	if err := b.embedded.idle(t.Context(), snapshotEvery-b.embedded.entries()-20); err != nil {
		t.Fatal(err)
	}
	hog := filepath.Join(dir, "hog")
	fillUp(t, hog)
	if _, err := b.Room(); err == nil {
		t.Fatal("the disk is not full")
	}
	fillUp(t, hog)
	for i := range 100 {
		if err := put(t, b, i, 1); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
	}
}

// A half-made file that a crash has left is not part of the log of the next start.
func TestHalfMadeLogFilesAreNotTaken(t *testing.T) {
	dir := t.TempDir()
	open := func() *Backend {
		b, err := Open(t.Context(), Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := open()
	if err := put(t, b, 0, 1); err != nil {
		t.Fatal(err)
	}
	log := b.embedded.space.log
	old, err := log.segments()
	if err != nil || len(old) == 0 {
		t.Fatal(old, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(old[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(log.next(), log.spare) {
		if err := os.WriteFile(path, doc, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b = open()
	for i := range 40 {
		if err := put(t, b, i, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open().Close(); err != nil {
		t.Error(err)
	}
}
