package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// checkFiles finds damage on which etcd itself would wait for ever, or would end the process
// because it panics in goroutines of its own. The error names the file.
func checkFiles(member string) error {
	database, logs := filepath.Join(member, "snap", "db"), filepath.Join(member, "wal")
	size, err := sizeOf(database)
	if err != nil {
		return err
	}
	switch hasLog := wal.Exist(logs); {
	case size < 0 && !hasLog:
		return nil // a first start
	case size < 0:
		return fmt.Errorf("%s holds a write-ahead log, but the database %s is missing", logs, database)
	case size == 0:
		return fmt.Errorf("%s: the file is empty", database)
	}
	applied, keys, err := checkDatabase(database, size)
	if err != nil {
		return fmt.Errorf("%s: %w", database, err)
	}
	if !wal.Exist(logs) {
		if keys == 0 { // left by a first start that was killed
			return os.Remove(database)
		}
		return fmt.Errorf("the database %s has no write-ahead log", database)
	}
	snapshot, begun, err := checkLog(logs, applied)
	if err != nil {
		return fmt.Errorf("%s: %w", logs, err)
	}
	if !begun && keys == 0 {
		return errors.Join(os.RemoveAll(logs), os.Remove(database))
	}
	return dropUnrecorded(filepath.Dir(database), snapshot)
}

// sizeOf returns a file's size, or -1 if the file does not exist.
func sizeOf(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	return info.Size(), nil
}

// checkDatabase reads every page of the database, as etcd does when it starts. It returns the index
// of the last log entry that was applied to the database, and the number of keys.
func checkDatabase(path string, size int64) (applied uint64, keys int, err error) {
	defer rescue(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a page that the disk cannot read
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return applied, keys, db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("the file is truncated: it has %d of %d bytes", size, tx.Size())
		}
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				switch {
				case string(name) == string(schema.Key.Name()):
					keys++
				case string(name) == string(schema.Meta.Name()) && string(k) == string(schema.MetaConsistentIndexKeyName) && len(v) == 8:
					applied = binary.BigEndian.Uint64(v)
				}
				return nil
			})
		})
	})
}

// checkLog reads the log from its last snapshot on, and returns the index of that snapshot. A last
// entry that is only half written was never acknowledged, so it is not damage; an entry that the
// database has was acknowledged, so the log must have it too. begun is false if nothing is
// committed in the log, not even who the members are: a first start was killed, and the next one
// would never have a leader.
func checkLog(dir string, applied uint64) (snapshot uint64, begun bool, err error) {
	defer rescue(&err)
	start, last, commit, err := readLog(dir)
	if err != nil {
		return 0, false, err
	}
	if last < applied {
		return 0, false, fmt.Errorf("the log is damaged or truncated: it ends at entry %d, but the database has applied entry %d", last, applied)
	}
	return start, start > 0 || commit > 0, nil
}

// readLog returns the index of the last valid snapshot, the last entry, and what is committed. Usually the newest snapshot
// among the files is the last valid one, and the log need not be read from its beginning to find it: etcd itself does that,
// and reports damage before the snapshot as an error.
func readLog(dir string) (start, last, commit uint64, err error) {
	newest := newestSnapshot(filepath.Join(filepath.Dir(dir), "snap"))
	if newest.GetIndex() > 0 {
		last, commit, err = readFrom(dir, newest)
		if err == nil && newest.GetIndex() <= commit {
			return newest.GetIndex(), last, commit, nil
		}
	}
	all, err := wal.ValidSnapshotEntries(etcdLogger(nil), dir)
	if err != nil {
		return 0, 0, 0, err
	}
	from := &walpb.Snapshot{}
	if n := len(all); n > 0 {
		from = all[n-1]
	}
	last, commit, err = readFrom(dir, from)
	return from.GetIndex(), last, commit, err
}

// readFrom returns the last entry of the log, and what is committed, reading it from a snapshot on.
func readFrom(dir string, start *walpb.Snapshot) (last, commit uint64, err error) {
	w, err := wal.OpenForRead(etcdLogger(nil), dir, start)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = w.Close() }() // opened only to read; most of its files are closed already
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return 0, 0, err
	}
	last = start.GetIndex()
	if n := len(entries); n > 0 {
		last = entries[n-1].GetIndex()
	}
	return last, state.GetCommit(), nil
}

// rescue turns a panic, also one from a page of a mapped file that cannot be read, into an error.
func rescue(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the file is damaged: %v", r)
	}
}
