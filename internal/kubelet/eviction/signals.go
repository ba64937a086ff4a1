package eviction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signals of the thresholds.
const (
	MemoryAvailable         = "memory.available"
	AllocatableMemory       = "allocatableMemory.available"
	NodeFsAvailable         = "nodefs.available"
	NodeFsInodesFree        = "nodefs.inodesFree"
	ImageFsAvailable        = "imagefs.available"
	ImageFsInodesFree       = "imagefs.inodesFree"
	ContainerFsAvailable    = "containerfs.available"
	ContainerFsInodesFree   = "containerfs.inodesFree"
	PIDAvailable            = "pid.available"
	resourceInodes          = v1.ResourceName("inodes")
	resourcePIDs            = v1.ResourceName("pids")
	neverBelow, alwaysBelow = "0%", "100%"
)

// about is what a signal is about.
type about struct {
	resource  v1.ResourceName
	condition v1.NodeConditionType
}

var signals = map[string]about{
	MemoryAvailable: {v1.ResourceMemory, v1.NodeMemoryPressure}, AllocatableMemory: {v1.ResourceMemory, v1.NodeMemoryPressure},
	NodeFsAvailable: {v1.ResourceEphemeralStorage, v1.NodeDiskPressure}, NodeFsInodesFree: {resourceInodes, v1.NodeDiskPressure},
	ImageFsAvailable: {v1.ResourceEphemeralStorage, v1.NodeDiskPressure}, ImageFsInodesFree: {resourceInodes, v1.NodeDiskPressure},
	ContainerFsAvailable: {v1.ResourceEphemeralStorage, v1.NodeDiskPressure}, ContainerFsInodesFree: {resourceInodes, v1.NodeDiskPressure},
	PIDAvailable: {resourcePIDs, v1.NodePIDPressure},
}

// order is the one in which shortages are dealt with: memory first, because the kernel does not wait.
var order = []string{
	MemoryAvailable, AllocatableMemory, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree, PIDAvailable,
}

// Limits are the thresholds as they are configured, by signal.
type Limits struct {
	Hard, Soft, SoftGrace, MinReclaim map[string]string
	// Pods: the pods together are held to what is allocatable, so that they can run short of memory
	// among themselves.
	Pods bool
}

// Rule is a threshold as it is configured.
type Rule struct {
	signal, value, reclaim string
	grace                  time.Duration
}

// Parse checks the limits. Like upstream's kubelet it ignores 0 % and 100 %, and those of containerfs:
// containers are on the disk of the node or of the images, and its thresholds are theirs.
func Parse(l Limits) ([]Rule, error) {
	var errs []error
	grace := map[string]time.Duration{}
	for signal, text := range l.SoftGrace {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = fmt.Errorf("invalid eviction grace period specified: %s, must be a positive value", text)
		}
		grace[signal] = d
		errs = append(errs, known(signal), named("--eviction-soft-grace-period", signal, err))
	}
	for signal, text := range l.MinReclaim {
		errs = append(errs, known(signal), named("--eviction-minimum-reclaim", signal, checkReclaim(signal, text)))
	}
	var out []Rule
	add := func(flag string, list map[string]string, soft bool) {
		for _, signal := range slices.Sorted(maps.Keys(list)) {
			errs = append(errs, known(signal), named(flag, signal, check(signal, list[signal])))
			r := Rule{signal: signal, value: list[signal], reclaim: l.MinReclaim[signal]}
			if soft {
				d, ok := grace[signal]
				if !ok {
					errs = append(errs, fmt.Errorf("grace period must be specified for the soft eviction threshold %s", signal))
				}
				r.grace = d
			}
			if r.value == neverBelow || r.value == alwaysBelow || signal == ContainerFsAvailable || signal == ContainerFsInodesFree {
				continue
			}
			out = append(out, r)
			if _, own := list[AllocatableMemory]; signal == MemoryAvailable && !soft && l.Pods && !own {
				r.signal = AllocatableMemory
				out = append(out, r)
			}
		}
	}
	add("--eviction-hard", l.Hard, false)
	add("--eviction-soft", l.Soft, true)
	return out, errors.Join(errs...)
}

func named(flag, signal string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", flag, signal, err)
}

func known(signal string) error {
	if _, ok := signals[signal]; !ok {
		return fmt.Errorf("unsupported eviction signal %s", signal)
	}
	return nil
}

func check(signal, text string) error {
	q, err := Quantity(text, 0)
	if err == nil && !strings.HasSuffix(text, "%") && q.Sign() == 0 {
		err = fmt.Errorf("eviction threshold %s must be positive: %s", signal, text)
	}
	return err
}

func checkReclaim(signal, text string) error {
	_, err := Quantity(text, 0)
	if p, ok := strings.CutSuffix(text, "%"); ok && err == nil {
		if n, parseErr := strconv.ParseFloat(p, 64); parseErr != nil || n <= 0 {
			err = fmt.Errorf("eviction percentage minimum reclaim %s must be positive: %s", signal, text)
		}
	}
	return err
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

// Kept returns the quantity that a hard threshold keeps from pods: none if it is ignored.
func Kept(s string, total int64) (resource.Quantity, error) {
	if s == neverBelow || s == alwaysBelow {
		return resource.Quantity{}, nil
	}
	return Quantity(s, total)
}

// Level is how much of something there is, and how much of that is free.
type Level struct{ Free, Total int64 }

// Levels are those of signals.
type Levels map[string]Level

// Threshold is where eviction begins: when less than Least is free.
type Threshold struct {
	Signal string
	Least  int64 // bytes, or a number
	// Reclaim is how much more than Least has to be free for a shortage to end.
	Reclaim int64
	// Grace is how long a shortage lasts before pods are evicted, with a grace period of their own; 0
	// for a hard threshold.
	Grace time.Duration
}

// Resolve returns the thresholds of what has levels, in the order in which they are dealt with. never are
// those that no eviction could satisfy, because they ask for more than there is: they are left out, and
// so is what does not exist, such as inodes on a file system that makes them on demand.
func Resolve(rules []Rule, levels Levels) (out, never []Threshold, err error) {
	for _, r := range rules {
		total := levels[r.signal].Total
		if total <= 0 {
			continue
		}
		least, err := Quantity(r.value, total)
		if err != nil {
			return nil, nil, err
		}
		t := Threshold{Signal: r.signal, Least: least.Value(), Grace: r.grace}
		if r.reclaim != "" {
			more, err := Quantity(r.reclaim, total)
			if err != nil {
				return nil, nil, err
			}
			t.Reclaim = more.Value()
		}
		switch {
		case t.Least >= total:
			never = append(never, t)
		case t.Least > 0:
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, compare)
	return out, never, nil
}

func compare(a, b Threshold) int {
	return cmp.Or(cmp.Compare(slices.Index(order, a.Signal), slices.Index(order, b.Signal)), cmp.Compare(a.Grace, b.Grace), cmp.Compare(a.Least, b.Least))
}

// resource names what the signal is about, in the words of events.
func (t Threshold) resource() v1.ResourceName { return signals[t.Signal].resource }

// onDisk reports whether the threshold is one of a disk.
func (t Threshold) onDisk() bool { return signals[t.Signal].condition == v1.NodeDiskPressure }

// Shortage is a threshold that was crossed, and what is left.
type Shortage struct {
	Threshold
	Free int64
}

// lacks is what has to become free for the shortage to end.
func (s Shortage) lacks() int64 { return max(s.Least+s.Reclaim-s.Free, 0) }

// Reclaiming returns the message of the node's event EvictionThresholdMet.
func (s Shortage) Reclaiming() string { return "Attempting to reclaim " + string(s.resource()) }
