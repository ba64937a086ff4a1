// Package eviction keeps a node from running out of memory, processes, disk space and inodes. Resolve,
// State.Look, Choose and Refuses decide, without any I/O, where thresholds are, whether one is crossed,
// which pod has to go, and which may come; a Guard looks at the node and carries that out. Signals, order
// and words are upstream's, from its documentation of node-pressure eviction. One thing is added: a pod is
// evicted only if that frees a useful amount, so that a shortage which something else has caused does not
// cost the node all of its pods.
package eviction

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// What a pod must at least hold for its eviction to be useful.
const (
	worthBytes  = 8 << 20
	worthInodes = 1000
	worthMemory = 1 << 20
	worthPIDs   = 8
)

// Usage is how much of the node a pod, or one of its containers, uses.
type Usage struct {
	Bytes, Inodes uint64 // on disk
	Memory        uint64 // working set
	PIDs          uint64
}

// Plus returns the sum of both.
func (u Usage) Plus(o Usage) Usage {
	return Usage{u.Bytes + o.Bytes, u.Inodes + o.Inodes, u.Memory + o.Memory, u.PIDs + o.PIDs}
}

// minus returns what of the disk is left without a part.
func (u Usage) minus(o Usage) Usage {
	u.Bytes -= min(o.Bytes, u.Bytes)
	u.Inodes -= min(o.Inodes, u.Inodes)
	return u
}

func (u Usage) of(t Threshold) uint64 {
	switch t.resource() {
	case resourceInodes:
		return u.Inodes
	case v1.ResourceMemory:
		return u.Memory
	case resourcePIDs:
		return u.PIDs
	default:
		return u.Bytes
	}
}

// Pod is a candidate for eviction.
type Pod struct {
	Pod *v1.Pod
	Usage
	Containers map[string]Usage // writable layer and logs, or memory
	// LayersOf is the part of that which is written to the containers' root file systems.
	LayersOf map[string]Usage
	// Claims has what its claims hold of the node's disk, by name. The end of the pod does not free that.
	Claims map[string]Claimed
	// Ended: nothing of it runs, and removing what is left of its containers hurts nobody.
	Ended bool
}

// Claimed is what is in the directory of a claim.
type Claimed struct {
	Usage
	Size uint64 // bytes that the claim has been given
}

// over returns how much a claim holds that it was not given. Nobody is given inodes.
func (c Claimed) over() Usage { return Usage{Bytes: c.Bytes - min(c.Size, c.Bytes), Inodes: c.Inodes} }

// burden is what a pod uses of what is short, and what its claims hold that they were not given: it ends with the pod, or
// grows no more.
func (p *Pod) burden(t Threshold) uint64 {
	sum := p.of(t)
	for _, c := range p.Claims {
		sum += c.over().of(t)
	}
	return sum
}

// AddLayer adds what a container has written to its root file system to LayersOf.
func (p *Pod) AddLayer(container string, u Usage) {
	if p.LayersOf == nil {
		p.LayersOf = map[string]Usage{}
	}
	p.LayersOf[container] = p.LayersOf[container].Plus(u)
}

func (p *Pod) layers() (sum Usage) {
	for _, u := range p.LayersOf {
		sum = sum.Plus(u)
	}
	return sum
}

// Disks say which of the node's disks is which.
type Disks struct {
	// ImagesApart: images have a disk of their own; LayersApart: containers' layers are there, too.
	ImagesApart, LayersApart bool
}

// On returns the pods with what their end would free on the disk of a shortage.
func (d Disks) On(s Shortage, list []Pod) []Pod {
	if !s.onDisk() || !d.ImagesApart {
		return list
	}
	image := s.Signal == ImageFsAvailable || s.Signal == ImageFsInodesFree
	out := slices.Clone(list)
	for i := range out {
		p := &out[i]
		switch {
		case image && d.LayersApart:
			p.Usage, p.Claims = p.layers(), nil
		case image:
			p.Usage, p.Claims = Usage{}, nil
		case d.LayersApart:
			p.Usage = p.minus(p.layers())
		}
	}
	return out
}

// FreedByImages reports whether the removal of images gives back what a shortage is of.
func (d Disks) FreedByImages(s Shortage) bool {
	return s.onDisk() && (!d.ImagesApart || s.Signal == ImageFsAvailable || s.Signal == ImageFsInodesFree)
}

func worth(s Shortage) uint64 {
	switch s.resource() {
	case resourceInodes:
		return worthInodes
	case v1.ResourceMemory:
		return worthMemory
	case resourcePIDs:
		return worthPIDs
	default:
		return worthBytes
	}
}

// Choose returns the pod to evict, if one is worth it. Pods that have ended come first. Then, for memory
// and disk space, those that use more than they requested come before those that do not; then the lowest
// priority; then whoever uses most above what it requested. Neither inodes nor processes can be requested. What a pod's
// claims hold that they were not given counts as the pod's: it stays, but the pod that writes it must not cost others
// their place.
//
// If the end of all of them would not end a shortage of memory or processes, none of them caused it: then
// there is none to evict. A disk gets back what it can.
func Choose(s Shortage, pods []Pod) (Pod, bool) {
	var left []Pod
	var sum uint64
	for _, p := range pods {
		if p.burden(s.Threshold) >= worth(s) && (s.onDisk() || !p.Ended) {
			left = append(left, p)
			sum += p.burden(s.Threshold)
		}
	}
	if len(left) == 0 || !s.onDisk() && int64(sum) < s.lacks() {
		return Pod{}, false
	}
	return slices.MinFunc(left, func(a, b Pod) int {
		return cmp.Or(
			-cmp.Compare(bit(a.Ended), bit(b.Ended)),
			-cmp.Compare(bit(above(a, s) > 0), bit(above(b, s) > 0)),
			cmp.Compare(priority(a.Pod), priority(b.Pod)),
			-cmp.Compare(above(a, s), above(b, s)),
		)
	}), true
}

// above returns how much more a pod uses than it requested.
func above(p Pod, s Shortage) int64 {
	asked := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})[s.resource()]
	return int64(p.burden(s.Threshold)) - asked.Value()
}

// GivenBack reports whether the node shows most of what a pod held as free again; low is the shortage when
// least was free.
func GivenBack(low, now Shortage, gone Pod) bool {
	return now.Signal != low.Signal || now.Free-low.Free >= int64(gone.of(now.Threshold)/4*3)
}

// Grows reports whether a pod other than the evicted one keeps using more meanwhile.
func Grows(s Shortage, before, now []Pod, gone Pod) bool {
	return slices.ContainsFunc(now, func(p Pod) bool {
		i := slices.IndexFunc(before, func(b Pod) bool { return b.Pod.UID == p.Pod.UID })
		was := uint64(0)
		if i >= 0 {
			was = before[i].burden(s.Threshold)
		}
		return p.Pod.UID != gone.Pod.UID && p.burden(s.Threshold) >= was+worth(s)
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Annotations of the event that says why a pod was evicted (upstream's).
const (
	starvedResource          = "starved_resource"
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
)

// Message says to the owner of an evicted pod why it was evicted, and which of its containers used
// more than they requested; the annotations say that to programs.
func Message(s Shortage, p Pod) (message string, annotations map[string]string) {
	var b strings.Builder
	what := s.resource()
	annotations = map[string]string{starvedResource: string(what)}
	fmt.Fprintf(&b, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", what, amount(s.Threshold, s.Least), amount(s.Threshold, s.Free))
	if what != v1.ResourceMemory && what != v1.ResourceEphemeralStorage {
		return b.String(), annotations
	}
	if r := p.Pod.Spec.Resources; what == v1.ResourceMemory && r != nil {
		if asked, ok := r.Requests[what]; ok {
			used := resource.NewQuantity(int64(p.Memory), resource.BinarySI)
			fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %s. ", p.Pod.Name, used, asked.String(), what)
			annotations[offendingPod], annotations[offendingPodUsage] = p.Pod.Name, used.String()
		}
	}
	var offending, usage []string
	for _, c := range slices.Concat(p.Pod.Spec.Containers, p.Pod.Spec.InitContainers) {
		asked := c.Resources.Requests[what]
		used := resource.NewQuantity(int64(p.Containers[c.Name].of(s.Threshold)), resource.BinarySI)
		if used.Cmp(asked) > 0 {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, used, asked.String(), what)
			offending, usage = append(offending, c.Name), append(usage, used.String())
		}
	}
	annotations[offendingContainers], annotations[offendingContainersUsage] = strings.Join(offending, ","), strings.Join(usage, ",")
	for _, name := range slices.Sorted(maps.Keys(p.Claims)) {
		if c := p.Claims[name]; what == v1.ResourceEphemeralStorage && c.over().Bytes > 0 {
			fmt.Fprintf(&b, "Claim %s was using %s, was given %s, and keeps its data. ", name,
				resource.NewQuantity(int64(c.Bytes), resource.BinarySI), resource.NewQuantity(int64(c.Size), resource.BinarySI))
		}
	}
	return b.String(), annotations
}

func amount(t Threshold, n int64) string {
	if r := t.resource(); r == resourceInodes || r == resourcePIDs {
		return strconv.FormatInt(n, 10)
	}
	// In whole KiB: a message that changes with every byte says no more.
	return resource.NewQuantity(n>>10<<10, resource.BinarySI).String()
}
