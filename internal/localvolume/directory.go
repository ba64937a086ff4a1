package localvolume

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/quota"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// openToAll is the mode of a volume: which user a pod runs as is not known, and nobody else gets to it.
const openToAll = 0o777

// makeDirectory makes the directory of a volume, unless it is there, and limits it to the volume's size, in bytes, if the
// file system can do that. It is on the disk when this returns: the volume that names it comes next, and must not outlive it.
func makeDirectory(root, name string, size int64) error {
	dir, err := safepath.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Make(name, openToAll); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := folder(dir, name)
	if err != nil {
		return err // something else has its name
	}
	defer func() { _ = there.Close() }()
	if err := quota.Limit(there, uint64(size)); err != nil && !errors.Is(err, quota.ErrNone) {
		return err
	}
	return errors.Join(there.Sync(), record.SyncDir(root))
}

// folder opens a folder that has a name, not one to which a link of that name leads.
func folder(in *safepath.Dir, name string) (*os.File, error) {
	dir, err := in.Sub(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Folder(".")
}

// limitDirectory limits the directory of a volume to another size, if it is limited.
func limitDirectory(root, name string, size int64) error {
	return onDirectory(root, name, func(there *os.File) error {
		if project, err := quota.Project(there); err != nil || project == 0 {
			return err
		}
		if err := quota.Limit(there, uint64(size)); !errors.Is(err, quota.ErrNone) {
			return err
		}
		return nil // limits were switched off
	})
}

// onDirectory calls f with the directory of a volume; not at all if there is none, or something else in its place.
func onDirectory(root, name string, f func(*os.File) error) error {
	dir, err := safepath.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	there, err := folder(dir, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f(there), there.Close())
}
