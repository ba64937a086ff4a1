// Package userns gives each pod with a user namespace of its own (hostUsers: false, KEP-127) a
// range of the host's user and group IDs. No two pods share one: a range is on disk, in the pod's
// directory, before it is handed out, and is free again only when the pod is gone.
//
// A record that cannot be read is restored from what the runtime reports for the pod's sandbox.
// Until it has answered, no range is handed out.
package userns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
)

const (
	// Unit is the granularity of ranges: their length must be a multiple of it.
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
	// Pods is the directory that has a directory for each pod.
	Pods string
	// IDsPerPod is the length of each range, a multiple of Unit.
	IDsPerPod uint32
	// Host is what ranges are taken from; the zero value stands for all IDs except the first range.
	Host Range
	// MaxPods is the number of pods for which there must be ranges.
	MaxPods int
	// Shown returns the range that the runtime's sandboxes of a pod have, if any.
	Shown func(ctx context.Context, uid types.UID) (r Range, ok bool, err error)
}

// Allocator hands out ranges. It is safe for concurrent use.
type Allocator struct {
	pods   string
	host   Range
	length uint32
	shown  func(context.Context, types.UID) (Range, bool, error)

	mu   sync.Mutex
	of   map[types.UID]Range
	lost map[types.UID]error // pods whose record cannot be read, and why
	next uint32              // where to look first: what was freed last is handed out last
}

// Open checks the configuration and reads which ranges the pods on disk have.
func Open(cfg Config) (*Allocator, error) {
	if cfg.Host == (Range{}) {
		cfg.Host = Range{First: cfg.IDsPerPod, Length: -cfg.IDsPerPod} // up to the last of 32 bits
	}
	if err := check(cfg); err != nil {
		return nil, err
	}
	a := &Allocator{
		pods: cfg.Pods, host: cfg.Host, length: cfg.IDsPerPod, shown: cfg.Shown,
		of: map[types.UID]Range{}, lost: map[types.UID]error{}, next: cfg.Host.First,
	}
	entries, err := os.ReadDir(cfg.Pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("user namespaces: %w", err)
	}
	for _, e := range entries {
		a.load(types.UID(e.Name()))
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
		return fmt.Errorf("user namespaces: the kubelet's range of %d IDs is not a multiple of %d", cfg.Host.Length, n)
	case int64(cfg.Host.Length/n) < int64(cfg.MaxPods):
		return fmt.Errorf("user namespaces: the kubelet's range of %d IDs is too small for %d pods", cfg.Host.Length, cfg.MaxPods)
	}
	return nil
}

// load takes over what an earlier kubelet gave to a pod. A range from another configuration stays
// the pod's; it just must not be handed out again.
func (a *Allocator) load(uid types.UID) {
	var r Range
	_, err := record.Read(a.path(uid), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil && !r.valid() {
		err = fmt.Errorf("%d IDs from %d are not a valid range", r.Length, r.First)
	}
	if err != nil {
		a.lost[uid] = err
		return
	}
	a.of[uid] = r
}

// valid reports whether a pod can have the range. The very last ID means "none" to the kernel.
func (r Range) valid() bool { return r.First > 0 && r.Length > 0 && r.First+r.Length > r.First }

func (r Range) overlaps(o Range) bool {
	return r.First < o.First+o.Length && o.First < r.First+r.Length
}

func (a *Allocator) path(uid types.UID) string { return filepath.Join(a.pods, string(uid), fileName) }

// Get returns the pod's range, and allocates one the first time.
func (a *Allocator) Get(ctx context.Context, uid types.UID) (Range, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.recoverLocked(ctx); err != nil {
		return Range{}, err
	}
	if r, ok := a.of[uid]; ok {
		return r, nil
	}
	r, err := a.freeLocked()
	if err != nil {
		return Range{}, err
	}
	if err := a.giveLocked(uid, r); err != nil {
		return Range{}, err
	}
	a.next = r.First + a.length
	return r, nil
}

func (a *Allocator) giveLocked(uid types.UID, r Range) error {
	if err := os.MkdirAll(filepath.Dir(a.path(uid)), 0o750); err != nil {
		return err
	}
	if err := record.Write(a.path(uid), fileVersion, r); err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	a.of[uid] = r
	return nil
}

// recoverLocked finds out the ranges of the pods whose records cannot be read. A pod without a
// sandbox runs nothing, and may get another range.
func (a *Allocator) recoverLocked(ctx context.Context) error {
	for uid, why := range a.lost {
		r, ok, err := a.shown(ctx, uid)
		if err == nil && ok && !r.valid() {
			err = fmt.Errorf("the runtime reports %d IDs from %d, which are not a valid range", r.Length, r.First)
		}
		if err != nil {
			return fmt.Errorf("user namespace of pod %s: cannot read its record (%w) or find its range: %w", uid, why, err)
		}
		log := klog.Background() // the context's is that of the pod which asks for a range
		if ok {
			err = a.giveLocked(uid, r)
			log.Info("Cannot read the record of a pod's user namespace; restored it from the pod's sandbox",
				"podUID", uid, "err", why, "first", r.First, "length", r.Length)
		} else {
			err = record.Remove(a.path(uid))
			log.Info("Cannot read the record of a pod's user namespace; dropped it because the pod has no sandbox", "podUID", uid, "err", why)
		}
		if err != nil {
			return err
		}
		delete(a.lost, uid)
	}
	return nil
}

// freeLocked returns a range that nobody has.
func (a *Allocator) freeLocked() (Range, error) {
	n := a.host.Length / a.length
	start := (a.next - a.host.First) / a.length
	for i := range n {
		r := Range{First: a.host.First + (start+i)%n*a.length, Length: a.length}
		if r.valid() && !a.takenLocked(r) {
			return r, nil
		}
	}
	return Range{}, errors.New("could not find an empty slot to allocate a user namespace")
}

func (a *Allocator) takenLocked(r Range) bool {
	for _, o := range a.of {
		if r.overlaps(o) {
			return true
		}
	}
	return false
}

// Release frees the range of a pod that has nothing left on the node.
func (a *Allocator) Release(uid types.UID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, lost := a.lost[uid]
	if _, ok := a.of[uid]; !ok && !lost {
		return nil
	}
	if err := record.Remove(a.path(uid)); err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	delete(a.of, uid)
	delete(a.lost, uid)
	return nil
}
