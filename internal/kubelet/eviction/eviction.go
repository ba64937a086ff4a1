// Package eviction keeps the node's disks from filling up. Short and Choose decide, without any
// I/O, whether a disk is short of space and which pod has to go; a Guard looks at the disks and
// carries that out. Signals, order and words are upstream's, from its documentation of
// node-pressure eviction. One thing is added: a pod is evicted only if that frees a useful amount,
// so that a disk which something else has filled does not cost the node all of its pods.
package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/disk"
)

// Signals of --eviction-hard that are about disks.
const (
	NodeFsAvailable   = "nodefs.available"
	NodeFsInodesFree  = "nodefs.inodesFree"
	ImageFsAvailable  = "imagefs.available"
	ImageFsInodesFree = "imagefs.inodesFree"
)

// MessageCondition is why a pod is not admitted to a node whose disk is short of space.
const MessageCondition = "The node had condition: [DiskPressure]. "

// What a pod must at least hold for its eviction to be useful.
const (
	worthBytes  = 8 << 20
	worthInodes = 1000
)

// Threshold is where eviction begins: when less than Least is free.
type Threshold struct {
	Signal string
	Least  int64 // bytes, or inodes
}

// Inodes reports whether the threshold counts inodes.
func (t Threshold) Inodes() bool {
	return t.Signal == NodeFsInodesFree || t.Signal == ImageFsInodesFree
}

// resource names what the signal is about, in the words of events.
func (t Threshold) resource() string {
	if t.Inodes() {
		return "inodes"
	}
	return string(v1.ResourceEphemeralStorage)
}

// ParseThresholds reads the part of --eviction-hard that is about disks: a quantity, or a
// percentage of the disk's total. A file system that creates inodes on demand has no threshold for
// them. The order is upstream's: the first shortage is the one that is reported.
func ParseThresholds(hard map[string]string, node, image disk.Room) ([]Threshold, error) {
	var out []Threshold
	for _, s := range []struct {
		signal string
		total  uint64
	}{
		{NodeFsAvailable, node.Total}, {NodeFsInodesFree, node.Inodes},
		{ImageFsAvailable, image.Total}, {ImageFsInodesFree, image.Inodes},
	} {
		value := hard[s.signal]
		if value == "" || s.total == 0 {
			continue
		}
		least, err := Quantity(value, int64(s.total))
		if err != nil {
			return nil, fmt.Errorf("--eviction-hard: %s: %w", s.signal, err)
		}
		if n := least.Value(); n > 0 {
			out = append(out, Threshold{Signal: s.signal, Least: n})
		}
	}
	return out, nil
}

// Quantity reads a threshold: a quantity, or a percentage of a total.
func Quantity(s string, total int64) (resource.Quantity, error) {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || n < 0 || n > 100 {
			return resource.Quantity{}, fmt.Errorf("%q is not a percentage", s)
		}
		return *resource.NewQuantity(int64(float64(total)*n/100), resource.BinarySI), nil
	}
	q, err := resource.ParseQuantity(s)
	if err == nil && q.Sign() < 0 {
		err = fmt.Errorf("%q is negative", s)
	}
	return q, err
}

// Shortage is a threshold that was crossed, and what is left.
type Shortage struct {
	Threshold
	Free int64
}

// Short returns the first threshold that is crossed, if any.
func Short(list []Threshold, node, image disk.Room) (Shortage, bool) {
	for _, t := range list {
		free := map[string]uint64{
			NodeFsAvailable: node.Free, NodeFsInodesFree: node.FreeInodes, ImageFsAvailable: image.Free, ImageFsInodesFree: image.FreeInodes,
		}[t.Signal]
		if int64(free) < t.Least {
			return Shortage{Threshold: t, Free: int64(free)}, true
		}
	}
	return Shortage{}, false
}

// FreesByImages reports whether the removal of images gives back what a signal is about: on a disk of
// their own they are no help against a lack of room on the node's.
func FreesByImages(signal string, node, image disk.Room) bool {
	return signal == ImageFsAvailable || signal == ImageFsInodesFree || node.Device == image.Device
}

// Reclaiming returns the message of the node's event EvictionThresholdMet.
func (s Shortage) Reclaiming() string { return "Attempting to reclaim " + s.resource() }

// Usage is how much of the disk a pod, or one of its containers, uses.
type Usage struct{ Bytes, Inodes uint64 }

// Plus returns the sum of both.
func (u Usage) Plus(o Usage) Usage { return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes} }

func (u Usage) of(t Threshold) uint64 {
	if t.Inodes() {
		return u.Inodes
	}
	return u.Bytes
}

// Pod is a candidate for eviction.
type Pod struct {
	Pod *v1.Pod
	Usage
	Containers map[string]Usage // writable layer and logs
	// Ended: nothing of it runs, and removing what is left of its containers hurts nobody.
	Ended bool
}

func worth(s Shortage) uint64 {
	if s.Inodes() {
		return worthInodes
	}
	return worthBytes
}

// Choose returns the pod to evict, if one is worth it: pods that have ended come first, then those
// that use more of the disk than they requested, then the lowest priority, then the one that uses
// most.
func Choose(s Shortage, pods []Pod) (Pod, bool) {
	var left []Pod
	for _, p := range pods {
		if p.of(s.Threshold) >= worth(s) {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return Pod{}, false
	}
	return slices.MinFunc(left, func(a, b Pod) int {
		return cmp.Or(
			-cmp.Compare(bit(a.Ended), bit(b.Ended)),
			-cmp.Compare(bit(exceeds(a, s)), bit(exceeds(b, s))),
			cmp.Compare(priority(a.Pod), priority(b.Pod)),
			-cmp.Compare(a.of(s.Threshold), b.of(s.Threshold)),
		)
	}), true
}

// GivenBack reports whether the disk shows most of what a pod held as free again; low is the
// shortage when least was free.
func GivenBack(low, now Shortage, gone Pod) bool {
	return now.Signal != low.Signal || now.Free-low.Free >= int64(gone.of(now.Threshold)/4*3)
}

// Grows reports whether a pod other than the evicted one keeps using more meanwhile.
func Grows(s Shortage, before, now []Pod, gone Pod) bool {
	return slices.ContainsFunc(now, func(p Pod) bool {
		i := slices.IndexFunc(before, func(b Pod) bool { return b.Pod.UID == p.Pod.UID })
		was := uint64(0)
		if i >= 0 {
			was = before[i].of(s.Threshold)
		}
		return p.Pod.UID != gone.Pod.UID && p.of(s.Threshold) >= was+worth(s)
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// exceeds reports whether a pod uses more than it requested. Inodes cannot be requested.
func exceeds(p Pod, s Shortage) bool {
	if s.Inodes() {
		return false
	}
	asked := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return int64(p.Bytes) > asked.Value()
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Message says to the owner of an evicted pod why it was evicted, and which of its containers used
// more than they requested.
func Message(s Shortage, p Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", s.resource(), amount(s.Threshold, s.Least), amount(s.Threshold, s.Free))
	if s.Inodes() {
		return b.String()
	}
	for c := range pods.Containers(&p.Pod.Spec) {
		asked := c.Resources.Requests[v1.ResourceEphemeralStorage]
		used := resource.NewQuantity(int64(p.Containers[c.Name].Bytes), resource.BinarySI)
		if used.Cmp(asked) > 0 {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, used, asked.String(), s.resource())
		}
	}
	return b.String()
}

func amount(t Threshold, n int64) string {
	if t.Inodes() {
		return strconv.FormatInt(n, 10)
	}
	// In whole KiB: a message that changes with every byte says no more.
	return resource.NewQuantity(n>>10<<10, resource.BinarySI).String()
}
