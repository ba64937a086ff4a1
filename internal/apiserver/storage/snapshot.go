package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/record"
)

// Snapshot describes a snapshot of the cluster's data, in the words of `etcdutl snapshot status`.
type Snapshot struct {
	snapshot.Status
}

// DefaultBump is by how much a restore raises the revision: more than clients may have seen since the
// snapshot was made. It is etcd's advice
// (https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump).
const DefaultBump = 1_000_000_000

// Snapshot writes a snapshot of the data as they are now, with everything that has been acknowledged
// before: etcd's own format, which etcdutl takes, too.
func (b *Backend) Snapshot(ctx context.Context, w io.Writer) error {
	if b.embedded == nil {
		return errors.New("the cluster's data are in an external etcd (--etcd-servers): " +
			"use etcdctl snapshot save, which asks one of its members")
	}
	return whileAlive(ctx, b.embedded.door, func(ctx context.Context) error {
		s, err := b.client.SnapshotWithVersion(ctx)
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		_, err = io.Copy(w, s.Snapshot)
		if err := errors.Join(err, s.Snapshot.Close()); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		return nil
	})
}

// SaveSnapshot makes a file of what write writes, once that is a whole and sound snapshot and on disk.
// An existing file is replaced then, and not before.
func SaveSnapshot(path string, write func(io.Writer) error) (Snapshot, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*") // with mode 0600
	if err != nil {
		return Snapshot{}, err
	}
	err = write(f)
	err = errors.Join(err, f.Sync(), f.Close())
	var s Snapshot
	if err == nil {
		s, err = ReadSnapshot(f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return Snapshot{}, errors.Join(err, os.Remove(f.Name()))
	}
	return s, record.SyncDir(filepath.Dir(path))
}

// ReadSnapshot reads all of a snapshot. A damaged one is an error.
func ReadSnapshot(path string) (s Snapshot, err error) {
	if err := checkSum(path); err != nil {
		return s, fmt.Errorf("snapshot %s: %w", path, err)
	}
	defer rescue(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a page that the disk cannot read
	if s.Status, err = snapshot.NewV3(etcdLogger(nil)).Status(path); err != nil {
		return s, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return s, nil
}

// checkSum compares a snapshot with the checksum at its end. A database has a whole number of blocks
// of 512 bytes; what is more can only be that.
func checkSum(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - sha256.Size
	if !info.Mode().IsRegular() || size <= 0 || size%512 != 0 {
		return errors.New("the file has no checksum at its end: it is truncated, or not a snapshot")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, f, size); err != nil {
		return err
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("the file is damaged: its checksum is wrong; use another snapshot")
	}
	return nil
}

// Restore says what Restored does.
type Restore struct {
	// Dir is the same as in Config. No server may have it open.
	Dir string
	// Snapshot is the file.
	Snapshot string
	// Replace moves data that are there aside. Without it, they are a reason to refuse.
	Replace bool
	// Bump is by how much the next revision is higher than the last one of the snapshot and, with
	// Replace, of the data that were there.
	Bump uint64
}

// Restored is what a restore has done.
type Restored struct {
	Snapshot
	// Now is the revision of the data that were made. Clients that know an older one are told to list
	// again.
	Now int64
	// Aside is the folder with the data that were there, if any.
	Aside string
}

// RestoreSnapshot makes the data of an embedded etcd from a snapshot. Either they are all there
// afterwards, on disk, or nothing has changed.
func RestoreSnapshot(r Restore) (out Restored, err error) {
	if out.Snapshot, err = ReadSnapshot(r.Snapshot); err != nil {
		return out, err
	}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return out, err
	}
	lock, err := lockDir(r.Dir)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close()) }()
	last, there, err := r.present()
	if err != nil {
		return out, err
	}
	bump := r.Bump + uint64(max(0, last-out.Revision))
	out.Now = out.Revision + int64(bump)
	made, err := r.make(out.TotalSize, bump)
	if err != nil {
		return out, fmt.Errorf("restore %s: %w", r.Snapshot, err)
	}
	if !there {
		err = os.Rename(made, MemberDir(r.Dir))
	} else if err = exchange(made, MemberDir(r.Dir)); err == nil {
		out.Aside = MemberDir(r.Dir) + ".before-" + time.Now().UTC().Format("20060102T150405.000Z")
		err = os.Rename(made, out.Aside)
	}
	return out, errors.Join(err, record.SyncDir(r.Dir))
}

func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}

// present returns the last revision of the data that are there.
func (r Restore) present() (last int64, there bool, err error) {
	member := MemberDir(r.Dir)
	entries, err := os.ReadDir(member)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return 0, false, nil
	}
	if err != nil {
		return 0, true, err
	}
	if !r.Replace {
		return 0, true, fmt.Errorf("%s has data of a cluster already: --replace moves them aside", member)
	}
	last, err = lastRevision(filepath.Join(member, "member", "snap", "db"))
	if err != nil && r.Bump == DefaultBump {
		return 0, true, fmt.Errorf("cannot tell the last revision of the data in %s, "+
			"below which clients must not see the new ones: %w; give --bump-revision more than %d, which is what another restore may have used", member, err, DefaultBump)
	}
	return last, true, nil
}

// lastRevision returns the last revision in etcd's database; 0 if there is none. The log may have a
// few more.
func lastRevision(path string) (last int64, err error) {
	defer rescue(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return last, db.View(func(tx *bbolt.Tx) error {
		if keys := tx.Bucket(schema.Key.Name()); keys != nil {
			if k, _ := keys.Cursor().Last(); k != nil {
				last = mvcc.BytesToRev(k).Main
			}
		}
		return nil
	})
}

// make makes a folder like MemberDir, on disk, and returns its name.
func (r Restore) make(size int64, bump uint64) (made string, err error) {
	room, err := disk.Look(r.Dir)
	if err != nil {
		return "", err
	}
	if need := uint64(size) + openingBytes + refuseBelow; room.Free < need {
		return "", fmt.Errorf("%d MiB are free in %s, and it takes %d MiB: free some space", room.Free>>20, r.Dir, need>>20)
	}
	if made, err = os.MkdirTemp(r.Dir, "restoring-"); err != nil {
		return "", err
	}
	if err = r.fill(made, bump); err == nil {
		err = syncTree(made)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(made))
	}
	return made, nil
}

func (r Restore) fill(dir string, bump uint64) (err error) {
	defer rescue(&err)
	starting.Lock() // wal.SegmentSizeBytes is a variable of the library
	defer starting.Unlock()
	wal.SegmentSizeBytes = segmentBytes
	cfg, err := etcdConfig(r.Dir, nil)
	if err != nil {
		return err
	}
	err = snapshot.NewV3(etcdLogger(nil)).Restore(snapshot.RestoreConfig{
		SnapshotPath: r.Snapshot, OutputDataDir: dir,
		Name: memberName, PeerURLs: []string{memberURL},
		InitialCluster: cfg.InitialCluster, InitialClusterToken: cfg.InitialClusterToken,
		RevisionBump: bump, MarkCompacted: true,
	})
	if err != nil {
		return err
	}
	return checkFiles(filepath.Join(dir, "member"))
}

// syncTree makes a folder and all that is in it durable, and accessible to its owner only.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if e.IsDir() {
			mode = 0o700
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Chmod(mode), f.Sync(), f.Close())
	})
}
