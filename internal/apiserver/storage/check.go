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
	log := etcdLogger(nil)
	snapshots, err := wal.ValidSnapshotEntries(log, dir)
	if err != nil {
		return 0, false, err
	}
	start := &walpb.Snapshot{}
	if n := len(snapshots); n > 0 {
		start = snapshots[n-1]
	}
	w, err := wal.OpenForRead(log, dir, start)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = w.Close() }() // opened only to read; most of its files are closed already
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return 0, false, err
	}
	last := start.GetIndex()
	if n := len(entries); n > 0 {
		last = entries[n-1].GetIndex()
	}
	if last < applied {
		return 0, false, fmt.Errorf("the log is damaged or truncated: it ends at entry %d, but the database has applied entry %d", last, applied)
	}
	return start.GetIndex(), len(snapshots) > 0 && start.GetIndex() > 0 || state.GetCommit() > 0, nil
}

// rescue turns a panic, also one from a page of a mapped file that cannot be read, into an error.
func rescue(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the file is damaged: %v", r)
	}
}
