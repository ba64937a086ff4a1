// Package userns gives each pod with a user namespace of its own (hostUsers: false,
// KEP-127) a range of the host's user and group IDs. No two pods share one: a range
// is on disk, in the pod's folder, before it is handed out, and is free again only
// when the pod is gone.
package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/record"
)

const (
	// Unit is what a range's length must be a multiple of.
	Unit = 65536

	fileName    = "userns"
	fileVersion = 1
)

// Range of IDs on the host, of users and groups alike. The first is root in the pod.
type Range struct {
	First  uint32 `json:"first"`
	Length uint32 `json:"length"`
}

// Config of an allocator.
type Config struct {
	// Pods is the folder with a folder for each pod.
	Pods string
	// IDsPerPod is the length of each range, a multiple of Unit.
	IDsPerPod uint32
	// Host is what ranges are taken from; the zero value is all IDs but the first range.
	Host Range
	// MaxPods is how many pods there must be ranges for.
	MaxPods int
}

// Allocator hands ranges out. It is safe for concurrent use.
type Allocator struct {
	pods   string
	host   Range
	length uint32

	mu   sync.Mutex
	used map[uint32]types.UID // by first ID
	of   map[types.UID]uint32
	next uint32 // where to look first: what was freed last is given out last
}

// Open checks the configuration and reads which ranges pods on disk have.
func Open(cfg Config) (*Allocator, error) {
	if cfg.Host == (Range{}) {
		cfg.Host = Range{First: cfg.IDsPerPod, Length: -cfg.IDsPerPod} // up to the last of 32 bits
	}
	if err := check(cfg); err != nil {
		return nil, err
	}
	a := &Allocator{
		pods: cfg.Pods, host: cfg.Host, length: cfg.IDsPerPod,
		used: map[uint32]types.UID{}, of: map[types.UID]uint32{}, next: cfg.Host.First,
	}
	entries, err := os.ReadDir(cfg.Pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("user namespaces: %w", err)
	}
	for _, e := range entries {
		if err := a.load(types.UID(e.Name())); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func check(cfg Config) error {
	n := cfg.IDsPerPod
	switch {
	case n == 0 || n%Unit != 0:
		return fmt.Errorf("userNamespaces.idsPerPod %d is not a multiple of %d", n, Unit)
	case cfg.Host.First < n:
		return fmt.Errorf("user namespaces: the kubelet's first ID %d must not be below %d", cfg.Host.First, n)
	case cfg.Host.First%n != 0:
		return fmt.Errorf("user namespaces: the kubelet's first ID %d is not a multiple of %d", cfg.Host.First, n)
	case cfg.Host.Length%n != 0:
		return fmt.Errorf("user namespaces: the kubelet's number of IDs %d is not a multiple of %d", cfg.Host.Length, n)
	case int64(cfg.Host.Length/n) < int64(cfg.MaxPods):
		return fmt.Errorf("user namespaces: the kubelet's %d IDs are not enough for %d pods", cfg.Host.Length, cfg.MaxPods)
	}
	return nil
}

// load takes over what an earlier kubelet gave to a pod.
func (a *Allocator) load(uid types.UID) error {
	var r Range
	_, err := record.Read(a.path(uid), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	if other, taken := a.used[r.First]; taken {
		return fmt.Errorf("user namespace of pod %s: IDs from %d are those of pod %s", uid, r.First, other)
	}
	// A range of another configuration stays the pod's; it only must not be given out again.
	for first := r.First - r.First%a.length; first < r.First+r.Length && first >= r.First-r.First%a.length; first += a.length {
		a.used[first] = uid
	}
	a.of[uid] = r.First
	return nil
}

func (a *Allocator) path(uid types.UID) string { return filepath.Join(a.pods, string(uid), fileName) }

// Get returns the pod's range, and gives it one the first time.
func (a *Allocator) Get(uid types.UID) (Range, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.of[uid]; ok {
		var r Range
		if _, err := record.Read(a.path(uid), &r); err != nil {
			return Range{}, fmt.Errorf("user namespace of pod %s: %w", uid, err)
		}
		return r, nil
	}
	first, err := a.freeLocked()
	if err != nil {
		return Range{}, err
	}
	r := Range{First: first, Length: a.length}
	if err := os.MkdirAll(filepath.Dir(a.path(uid)), 0o750); err != nil {
		return Range{}, err
	}
	if err := record.Write(a.path(uid), fileVersion, r); err != nil {
		return Range{}, fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	a.used[first], a.of[uid] = uid, first
	a.next = first + a.length
	return r, nil
}

// freeLocked finds a range that nobody has.
func (a *Allocator) freeLocked() (uint32, error) {
	n := a.host.Length / a.length
	start := (a.next - a.host.First) / a.length
	for i := range n {
		first := a.host.First + (start+i)%n*a.length
		if first+a.length == 0 {
			continue // the very last ID means "none" to the kernel
		}
		if _, taken := a.used[first]; !taken {
			return first, nil
		}
	}
	return 0, errors.New("could not find an empty slot to allocate a user namespace")
}

// Release frees the range of a pod of which nothing is left on the node.
func (a *Allocator) Release(uid types.UID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.of[uid]; !ok {
		return nil
	}
	if err := record.Remove(a.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	delete(a.of, uid)
	for first, owner := range a.used {
		if owner == uid {
			delete(a.used, first)
		}
	}
	return nil
}
