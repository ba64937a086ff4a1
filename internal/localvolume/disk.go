package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/quota"
	"wherry.dev/internal/safepath"
)

// Disk is where the volumes of one node are: on this machine (Local), or on another one, whose kubelet is asked (Remote).
// Everything can be done again. Sizes are in bytes.
type Disk interface {
	// Root is the folder that has the volumes' directories.
	Root() string
	// Free returns how much new volumes can have.
	Free(ctx context.Context) (int64, error)
	// List returns the directories of volumes.
	List(ctx context.Context) ([]Directory, error)
	// Make makes the directory of a volume, unless it is there, with its size as the limit where there are limits. It is on
	// the disk when this returns.
	Make(ctx context.Context, name string, size int64) error
	// Limit gives the directory of a volume another size, if it has one.
	Limit(ctx context.Context, name string, size int64) error
	// Remove removes a directory with everything in it. The error is ErrInUse if it is mounted, and ErrUnfinished if there is
	// more to remove than can be waited for.
	Remove(ctx context.Context, name string) error
	// Tidy removes a directory in which nothing is, unless it was made once more since List. It reports whether it has data.
	Tidy(ctx context.Context, d Directory) (data bool, err error)
}

// Directory is one of a volume.
type Directory struct {
	Name string `json:"name"`
	// Version changes when it is made once more.
	Version string `json:"version"`
}

// What Remove can end with.
var (
	ErrInUse      = errors.New("the volume is in use")
	ErrUnfinished = errors.New("there is more to remove")
)

// removePatience is how long a removal may take before whoever asked for it is told to ask again.
const removePatience = 10 * time.Second

// Local is the disk of this machine. Create one with NewLocal.
type Local struct {
	root string
	// reserve is how much of the disk is kept free of new volumes; nil for nothing.
	reserve func(disk.Room) uint64
	look    func(path string) (disk.Room, error)

	mu   sync.Mutex
	boot string            // differs between processes
	last uint64            // how often a directory was made
	made map[string]uint64 // last, when each was
}

// NewLocal returns the disk that has a folder, which it makes. Nobody but root gets into it. Room that reserve returns, in bytes,
// is kept free of new volumes.
func NewLocal(root string, reserve func(disk.Room) uint64) (*Local, error) {
	if err := makeRoot(root); err != nil {
		return nil, fmt.Errorf("local volumes: %w", err)
	}
	return &Local{
		root: root, reserve: reserve, look: disk.Look,
		boot: strconv.FormatInt(time.Now().UnixNano(), 36), made: map[string]uint64{},
	}, nil
}

// makeRoot makes the folder of all volumes, which only root may enter: what is in them is for pods alone.
func makeRoot(root string) error {
	if err := safepath.Full(root); err != nil {
		return fmt.Errorf("directory %q: %w", root, err)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	return os.Chmod(root, 0o700)
}

// Root implements Disk.
func (l *Local) Root() string { return l.root }

// roomStep is how exactly the room is told: what a log writes is no news.
const roomStep = 64 << 20

// Free implements Disk.
func (l *Local) Free(context.Context) (int64, error) {
	room, err := l.look(l.root)
	if err != nil {
		return 0, err
	}
	kept := uint64(0)
	if l.reserve != nil {
		kept = l.reserve(room)
	}
	if room.Free < kept {
		return 0, nil
	}
	return int64(room.Free-kept) / roomStep * roomStep, nil
}

// List implements Disk.
func (l *Local) List(context.Context) (out []Directory, err error) {
	entries, err := os.ReadDir(l.root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if valid(e.Name()) == nil {
			out = append(out, Directory{e.Name(), l.version(e.Name())})
		}
	}
	return out, nil
}

func (l *Local) version(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.versionLocked(name)
}

func (l *Local) versionLocked(name string) string {
	return l.boot + "." + strconv.FormatUint(l.made[name], 10)
}

// valid refuses what cannot be the name of a volume's directory.
func valid(name string) error {
	if !strings.HasPrefix(name, namePrefix) || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is not the name of a local volume", name)
	}
	return nil
}

// Make implements Disk.
func (l *Local) Make(_ context.Context, name string, size int64) error {
	if err := valid(name); err != nil {
		return err
	}
	l.mu.Lock()
	l.last++
	l.made[name] = l.last
	l.mu.Unlock()
	return makeDirectory(l.root, name, size)
}

// Limit implements Disk.
func (l *Local) Limit(_ context.Context, name string, size int64) error {
	if err := valid(name); err != nil {
		return err
	}
	return limitDirectory(l.root, name, size)
}

// Remove implements Disk.
func (l *Local) Remove(ctx context.Context, name string) error {
	if err := valid(name); err != nil {
		return err
	}
	dir := filepath.Join(l.root, name)
	users, err := mount.Showing(dir)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: it is still mounted at %s", ErrInUse, users[0])
	}
	if err := onDirectory(l.root, name, quota.Release); err != nil {
		return err
	}
	until, cancel := context.WithTimeout(ctx, removePatience)
	defer cancel()
	if err := safepath.RemoveAllUntil(until, dir); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return ErrUnfinished
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.made, name)
	return nil
}

// Tidy implements Disk.
func (l *Local) Tidy(_ context.Context, d Directory) (data bool, err error) {
	if err := valid(d.Name); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.versionLocked(d.Name) != d.Version {
		return false, nil // somebody is about to use it
	}
	err = unix.Rmdir(filepath.Join(l.root, d.Name))
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		delete(l.made, d.Name)
		return false, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENOTDIR):
		return true, nil
	}
	return false, fmt.Errorf("remove %s: %w", d.Name, err)
}
