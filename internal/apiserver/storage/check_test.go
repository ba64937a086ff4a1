package storage

import (
	"os"
	"path/filepath"
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
