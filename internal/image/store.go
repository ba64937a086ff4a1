package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const recordVersion = 1

var (
	// ErrNotFound means that no image has the reference or ID.
	ErrNotFound = errors.New("image not found")
	// ErrInUse means that a container holds the image.
	ErrInUse = errors.New("image is in use")
)

// Image is a snapshot of one image of the store.
type Image struct {
	ID      string              // sha256:<config digest>
	Tags    []string            // docker.io/library/busybox:1.36
	Digests []string            // docker.io/library/busybox@sha256:…
	Size    int64               // bytes of its layers as transported, plus its config
	Pinned  bool                // never garbage-collected
	Config  ocispec.ImageConfig // what its containers run by default
	Created time.Time           // when the image was built
}

// imageRecord is what images/<hex>.json holds.
type imageRecord struct {
	ID       string              `json:"id"`
	Size     int64               `json:"size"`
	Config   ocispec.ImageConfig `json:"config"`
	Created  time.Time           `json:"created"`
	Platform string              `json:"platform"`
	Chain    []string            `json:"chain"` // chain IDs, base layer first
}

// Store is an open image store. It is safe for concurrent use.
type Store struct {
	dir        string
	cfg        Config
	lock       *os.File
	flights    flights
	layerLocks keyLocks // by chain ID

	mu     sync.RWMutex
	images map[string]imageRecord         // by ID
	refs   map[string]string              // reference → ID
	layers map[string]layerMeta           // by chain ID
	holds  map[string]map[string]struct{} // image ID → owners
	pinned map[string]bool                // by ID, see Pin
	// reserved counts the users of a layer that no image's record names: a pull that has not
	// written the record yet, an export. The sweep leaves those layers alone.
	reserved map[string]int
	removals int // makes the names of removed layers' folders unique
}

// Open opens the store in dir with the default Config.
func Open(dir string) (*Store, error) { return OpenWith(dir, Config{}) }

// OpenWith opens the store in dir, which it makes if missing, and sweeps what a crash left. Only
// one process can have a store open at a time.
func OpenWith(dir string, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"images", "layers", "ingest"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, cfg: cfg, lock: lock,
		images: map[string]imageRecord{}, refs: map[string]string{}, layers: map[string]layerMeta{},
		holds: map[string]map[string]struct{}{}, reserved: map[string]int{},
	}
	if err := s.load(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("image store %s: %w", dir, err)
	}
	return s, nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := takeLock(f, dir); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func takeLock(f *os.File, dir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("another process is using the image store %s; use that process, or stop it: %w", dir, err)
	case err != nil:
		return fmt.Errorf("lock the image store %s: %w", dir, err)
	}
	return nil
}

// Close cancels what is in progress and releases the store to the next process.
func (s *Store) Close() error {
	s.flights.close()
	// Closing alone is not enough: a child that is being forked, by anybody in this process, has
	// the file open until its exec.
	return errors.Join(unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())
}

// Dir returns the store's folder.
func (s *Store) Dir() string { return s.dir }

// Lookup finds an image by reference (normalised: busybox means
// docker.io/library/busybox:latest), by ID, or by an unambiguous prefix of one.
func (s *Store) Lookup(refOrID string) (Image, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	id, ok := s.resolveLocked(refOrID)
	if !ok {
		return Image{}, false
	}
	return s.viewLocked(id), true
}

func (s *Store) resolveLocked(refOrID string) (string, bool) {
	if id, ok := s.refs[refOrID]; ok {
		return id, true
	}
	prefix := "sha256:" + strings.TrimPrefix(refOrID, "sha256:")
	if _, ok := s.images[prefix]; ok { // a full ID is not a reference
		return prefix, true
	}
	if ref, err := Normalize(refOrID); err == nil {
		if id, ok := s.refs[ref]; ok {
			return id, true
		}
	}
	found := ""
	for id := range s.images {
		if len(prefix) >= len("sha256:")+4 && strings.HasPrefix(id, prefix) {
			if found != "" {
				return "", false
			}
			found = id
		}
	}
	return found, found != ""
}

func (s *Store) viewLocked(id string) Image {
	r := s.images[id]
	img := Image{ID: r.ID, Size: r.Size, Config: r.Config, Created: r.Created, Pinned: s.pinned[id]}
	for ref, to := range s.refs {
		switch {
		case to != id:
		case strings.Contains(ref, "@"):
			img.Digests = append(img.Digests, ref)
		default:
			img.Tags = append(img.Tags, ref)
		}
		img.Pinned = img.Pinned || to == id && s.cfg.pins(ref)
	}
	slices.Sort(img.Tags)
	slices.Sort(img.Digests)
	return img
}

// List returns all images, ordered by their first tag, then by ID.
func (s *Store) List() []Image {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]Image, 0, len(s.images))
	for id := range s.images {
		list = append(list, s.viewLocked(id))
	}
	key := func(i Image) string { return strings.Join(i.Tags, ",") + i.ID }
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(key(a), key(b)) })
	return list
}

// Layers returns the unpacked layers of an image as overlayfs wants its lowerdir:
// the topmost first.
func (s *Store) Layers(imageID string) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.images[imageID]
	if !ok {
		return nil, fmt.Errorf("image %s: %w", imageID, ErrNotFound)
	}
	dirs := make([]string, 0, len(r.Chain))
	for _, c := range slices.Backward(r.Chain) {
		dirs = append(dirs, filepath.Join(s.layerDir(c), "fs"))
	}
	return dirs, nil
}

// Hold keeps an image from being removed until owner, a container ID, releases it. Holds are not
// durable: the runtime renews them when it starts.
func (s *Store) Hold(imageID, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.images[imageID]; !ok {
		return fmt.Errorf("image %s: %w", imageID, ErrNotFound)
	}
	if s.holds[imageID] == nil {
		s.holds[imageID] = map[string]struct{}{}
	}
	s.holds[imageID][owner] = struct{}{}
	return nil
}

// Pin keeps images from being garbage-collected, as long as the store is open.
func (s *Store) Pin(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pinned == nil {
		s.pinned = map[string]bool{}
	}
	for _, id := range ids {
		s.pinned[id] = true
	}
}

// Release ends every hold of the owner.
func (s *Store) Release(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, owners := range s.holds {
		delete(owners, owner)
		if len(owners) == 0 {
			delete(s.holds, id)
		}
	}
}

// Usage returns what the unpacked layers take on disk: bytes and inodes.
func (s *Store) Usage() (bytes, inodes uint64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, l := range s.layers {
		bytes += uint64(max(0, l.Bytes))
		inodes += uint64(max(0, l.Inodes))
	}
	return bytes, inodes, nil
}

func parseConfig(raw []byte) (ocispec.Image, error) {
	var c ocispec.Image
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("image config: %w", err)
	}
	return c, nil
}

func (s *Store) layerMeta(chainID string) layerMeta {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.layers[chainID]
}
