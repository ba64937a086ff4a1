package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// A first start that ended after etcd had created its log, but before it had recorded its members,
// used to leave data with which no start ever had a leader.
func TestFirstStartThatWroteNoEntry(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(MemberDir(dir), "member", "wal")
	w, err := wal.OpenForRead(etcdLogger(nil), logs, &walpb.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	metadata, _, _, err := w.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(MemberDir(dir), "member", "snap", "db")
	for _, path := range []string{logs, database} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	blank, err := wal.Create(etcdLogger(nil), logs, metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := blank.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(database, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b := open(t, dir)
	if err := put(t, b, 1, 10); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// The check does not read the log before its last snapshot. etcd does, and says so if that is damaged.
func TestDamageBeforeTheLastSnapshotIsTold(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	for i := range 12 {
		if err := put(t, b, i, 2<<20); err != nil { // more than a file of the log
			t.Fatal(err)
		}
	}
	for i := range snapshotEvery + 10 {
		if err := put(t, b, i, 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	member := filepath.Join(MemberDir(dir), "member")
	segments, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
	if err != nil || len(segments) < 2 || newestSnapshot(filepath.Join(member, "snap")).GetIndex() == 0 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	if err := checkFiles(member); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(segments[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("garbage"), 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := Open(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "crc mismatch") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
		if b != nil {
			_ = b.Close() // the test has failed already
		}
	}
}
