package imagegc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/podworker"
)

const (
	// again is when a collection that did not achieve enough is repeated: upstream's period.
	again = 5 * time.Minute
	// lookAfter bounds how often pods that come and go lead to a look at what they use.
	lookAfter = time.Minute
)

// Reasons of removals, as the metric has them.
const (
	ReasonAge   = "age"
	ReasonSpace = "space"
)

// Runtime knows which containers have which image.
type Runtime interface {
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
}

// Images are those on the node.
type Images interface {
	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
}

// Pods are the node's pods. *podworker.Pods implements it.
type Pods interface {
	List() []*podworker.Snapshot
}

// Records remember with which credentials images were pulled. *pullrecord.Records implements it.
type Records interface {
	Mark() uint64
	Forget(id string, mark uint64) error
	Retain(ids []string, mark uint64) error
}

// Events records what is done, and why.
type Events interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Config is what a Collector works with.
type Config struct {
	Policy  Policy
	Runtime Runtime
	Images  Images
	Pods    Pods
	Records Records
	Events  Events
	// Node is the object of events.
	Node func() *v1.ObjectReference
	// Room looks at the disk of the images.
	Room func() (disk.Room, error)
	// Removed is called for each image that was removed, with the reason.
	Removed func(reason string)
	// Changed is called when images were removed.
	Changed func()
}

// Collector removes images. It is safe for concurrent use; one collection runs at a time.
type Collector struct {
	cfg  Config
	wake chan struct{} // capacity 1: something may be used that was not, or the other way round
	full chan struct{} // capacity 1: the disk is over the high threshold

	// turn, of capacity 1, is held during a collection, and guards what follows. It is no mutex, because
	// whoever waits for a runtime that hangs must be able to give up.
	turn chan struct{}
	// seen has what is known about each image, by ID. Times have the monotonic clock: it does not
	// matter when somebody sets the clock.
	seen   map[string]Image
	began  time.Time // when the first look was made; zero before it
	failed int       // collections in a row that did not achieve enough
	retry  time.Time // before that, a full disk is no reason for another one
}

// New returns a Collector. Nothing happens before Run.
func New(cfg Config) *Collector {
	return &Collector{cfg: cfg, wake: make(chan struct{}, 1), full: make(chan struct{}, 1), turn: make(chan struct{}, 1), seen: map[string]Image{}}
}

func (c *Collector) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Collector) unlock() { <-c.turn }

// Poke says that pods have come or gone.
func (c *Collector) Poke() { poke(c.wake) }

// Saw is told what the images' disk looks like, by whoever watches it.
func (c *Collector) Saw(room disk.Room) {
	if _, over := c.cfg.Policy.Excess(room); over {
		poke(c.full)
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Run collects until the context ends. The caller first waits until all sources have synced: what a pod
// needs whose source has not spoken yet must not be removed.
func (c *Collector) Run(ctx context.Context) error {
	var next time.Time // of a look that is due; zero if none is
	looked := time.Time{}
	c.Poke()
	for ctx.Err() == nil {
		timer, stop := timerAt(next)
		select {
		case <-ctx.Done():
		case <-c.full:
			c.collectFull(ctx)
		case <-c.wake:
			if due := looked.Add(lookAfter); next.IsZero() || due.Before(next) {
				next = due
			}
		case <-timer:
			looked = time.Now()
			next = c.look(ctx)
		}
		stop()
	}
	return nil
}

func timerAt(t time.Time) (<-chan time.Time, func() bool) {
	if t.IsZero() {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(time.Until(t))
	return timer.C, timer.Stop
}

// look notes what is in use, removes what is too old, and returns when to look again; zero for when
// something happens.
func (c *Collector) look(ctx context.Context) time.Time {
	if c.lock(ctx) != nil {
		return time.Time{}
	}
	defer c.unlock()
	images, known, err := c.observeLocked(ctx)
	if err == nil {
		old := c.cfg.Policy.Old(images, c.began, time.Now())
		_, err = c.removeLocked(ctx, old, known, ReasonAge, math.MaxUint64)
	}
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot look after unused images, will retry")
		}
		return time.Now().Add(lookAfter)
	}
	if wait := c.cfg.Policy.NextOld(images, c.began, time.Now()); wait > 0 {
		return time.Now().Add(max(wait, lookAfter))
	}
	return time.Time{}
}

// observeLocked looks at the images and at what uses them. Images that are there at the first look are
// of unknown age: old enough.
func (c *Collector) observeLocked(ctx context.Context) ([]Image, names, error) {
	mark := c.cfg.Records.Mark()
	list, err := c.cfg.Images.ListImages(ctx, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", err)
	}
	used, known, err := c.used(ctx, list)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	seen, images, ids := map[string]Image{}, []Image(nil), []string(nil)
	for _, i := range list {
		one, ok := c.seen[i.Id]
		if !ok && !c.began.IsZero() {
			one.First = now
		}
		if used[i.Id] || one.Used { // it was in use until it was noticed that it is not
			one.Last = now
		}
		one.ID, one.Size, one.Pinned, one.Used = i.Id, i.Size, i.Pinned, used[i.Id]
		seen[i.Id] = one
		images, ids = append(images, one), append(ids, i.Id)
	}
	c.seen = seen
	if c.began.IsZero() {
		c.began = now
	}
	return images, known, c.cfg.Records.Retain(ids, mark)
}

// collectFull makes room on a disk that is over the high threshold.
func (c *Collector) collectFull(ctx context.Context) {
	if c.lock(ctx) != nil {
		return
	}
	defer c.unlock()
	if time.Now().Before(c.retry) {
		return
	}
	err := c.makeRoomLocked(ctx)
	if err == nil || ctx.Err() != nil {
		c.failed, c.retry = 0, time.Time{}
		return
	}
	c.failed++
	c.retry = time.Now().Add(again)
	if c.failed == 1 {
		klog.FromContext(ctx).Error(err, "Image garbage collection failed once")
		return
	}
	klog.FromContext(ctx).Error(err, "Image garbage collection failed multiple times in a row")
	c.cfg.Events.Eventf(c.cfg.Node(), v1.EventTypeWarning, "ImageGCFailed", "%s", err)
}

func (c *Collector) makeRoomLocked(ctx context.Context) error {
	room, err := c.cfg.Room()
	if err != nil {
		return err
	}
	excess, over := c.cfg.Policy.Excess(room)
	if !over {
		return nil
	}
	klog.FromContext(ctx).Info("Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold",
		"free", room.Free, "total", room.Total, "highThreshold", c.cfg.Policy.High, "lowThreshold", c.cfg.Policy.Low, "amountToFree", excess)
	freed, err := c.freeLocked(ctx, excess)
	if err == nil && freed < excess {
		err = fmt.Errorf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", //nolint:revive,staticcheck // upstream's words
			excess, freed)
		c.cfg.Events.Eventf(c.cfg.Node(), v1.EventTypeWarning, "FreeDiskSpaceFailed", "%s", err)
	}
	return err
}

// DeleteUnused removes every image that may be removed, before a pod is evicted, and returns how many
// bytes that gave back.
func (c *Collector) DeleteUnused(ctx context.Context) (uint64, error) {
	if err := c.lock(ctx); err != nil {
		return 0, err
	}
	defer c.unlock()
	return c.freeLocked(ctx, math.MaxUint64)
}

func (c *Collector) freeLocked(ctx context.Context, bytes uint64) (uint64, error) {
	images, known, err := c.observeLocked(ctx)
	if err != nil {
		return 0, err
	}
	return c.removeLocked(ctx, c.cfg.Policy.Unused(images, time.Now()), known, ReasonSpace, bytes)
}

// removeLocked removes images in order until enough bytes are free. An image that cannot be removed
// does not keep the others. What is freed is what the disk shows, or the images' sizes if it shows less:
// the kernel frees in the background, sizes are those of compressed layers, and layers may be shared.
func (c *Collector) removeLocked(ctx context.Context, list []Image, known names, reason string, enough uint64) (freed uint64, err error) {
	var errs []error
	before, roomErr := c.cfg.Room()
	sizes, removed := uint64(0), 0
	for _, i := range list {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		if c.neededNow(i.ID, known) {
			continue // a pod has come meanwhile
		}
		if err := c.removeOne(ctx, i, reason); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", i.ID, err))
			continue
		}
		delete(c.seen, i.ID)
		sizes, removed = sizes+i.Size, removed+1
		freed = sizes
		if now, err := c.cfg.Room(); err == nil && roomErr == nil && now.Free > before.Free {
			freed = max(freed, now.Free-before.Free)
		}
		if freed >= enough {
			break
		}
	}
	if removed > 0 {
		c.cfg.Changed()
	}
	return freed, errors.Join(errs...)
}

func (c *Collector) removeOne(ctx context.Context, i Image, reason string) error {
	klog.FromContext(ctx).Info("Removing image to free bytes", "imageID", i.ID, "size", i.Size, "reason", reason)
	mark := c.cfg.Records.Mark()
	if err := c.cfg.Images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: i.ID}); err != nil {
		return err
	}
	c.cfg.Removed(reason)
	return c.cfg.Records.Forget(i.ID, mark)
}

// neededNow asks only the pods: what a pod needs that came since the look.
func (c *Collector) neededNow(id string, known names) bool {
	for name := range needs(c.cfg.Pods.List()) {
		if have, ok := known.id(name); ok && have == id {
			return true
		}
	}
	return false
}
