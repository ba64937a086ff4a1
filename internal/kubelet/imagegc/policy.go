// Package imagegc removes images that no pod needs: when the disk that they are on is fuller than
// imageGCHighThresholdPercent, those that were used least recently until it is down to
// imageGCLowThresholdPercent; those that nobody used for imageMaximumGCAge; and all of them before a
// pod is evicted for lack of room. Plan and its kin decide, without any I/O; a Collector looks and
// carries out.
//
// Nothing is measured for it: the guard over the disks tells it what it sees, and pods that come and
// go tell it to look again at what is in use.
package imagegc

import (
	"cmp"
	"slices"
	"time"

	"wherry.dev/internal/disk"
)

// Policy is what the kubelet's configuration says about images that nobody uses.
type Policy struct {
	// High and Low are percentages of the disk: above High images are removed until it is at Low.
	// 100 for High means never.
	High, Low int32
	// MinAge is how long an image stays in any case once it was seen.
	MinAge time.Duration
	// MaxAge is how long an image may be unused, 0 for no limit.
	MaxAge time.Duration
}

// Excess returns how many bytes have to become free, and whether the disk is over the high threshold.
func (p Policy) Excess(room disk.Room) (bytes uint64, over bool) {
	if p.High >= 100 || room.Total == 0 {
		return 0, false
	}
	free := min(room.Free, room.Total)
	if 100-int32(free*100/room.Total) < p.High {
		return 0, false
	}
	target := room.Total / 100 * uint64(100-p.Low)
	return target - min(free, target), true
}

// Image is an image on the node.
type Image struct {
	ID     string
	Size   uint64
	Pinned bool
	Used   bool // a container or a pod needs it
	// First is when it was first seen; zero if it was there when the kubelet started.
	First time.Time
	// Last is when it was last seen in use; zero if it never was.
	Last time.Time
}

// Unused returns the images that may be removed, in the order in which they are: those that were used
// least recently first.
func (p Policy) Unused(images []Image, now time.Time) []Image {
	var out []Image
	for _, i := range images {
		if !i.Pinned && !i.Used && now.Sub(i.First) >= p.MinAge {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b Image) int {
		return cmp.Or(a.Last.Compare(b.Last), a.First.Compare(b.First), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Old returns the images that nobody used for too long. began is when the kubelet started: what was
// used before that is not known, so no image is too old earlier than MaxAge after it.
func (p Policy) Old(images []Image, began, now time.Time) []Image {
	if p.MaxAge <= 0 || now.Sub(began) <= p.MaxAge {
		return nil
	}
	return slices.DeleteFunc(p.Unused(images, now), func(i Image) bool { return now.Sub(p.since(i, began)) <= p.MaxAge })
}

// NextOld returns how long it takes until another image may be too old; 0 if none will be.
func (p Policy) NextOld(images []Image, began, now time.Time) time.Duration {
	if p.MaxAge <= 0 {
		return 0
	}
	var next time.Duration
	for _, i := range images {
		if i.Pinned || i.Used {
			continue
		}
		wait := max(p.MaxAge-now.Sub(p.since(i, began)), p.MinAge-now.Sub(i.First), 0) + time.Second
		if next == 0 || wait < next {
			next = wait
		}
	}
	return next
}

// since returns from when on an image counts as unused. Upstream takes one that was never used as
// endlessly old; one that was just pulled for a pod that vanished has its age from then on.
func (p Policy) since(i Image, began time.Time) time.Time {
	t := i.Last
	for _, o := range []time.Time{i.First, began} {
		if o.After(t) {
			t = o
		}
	}
	return t
}
