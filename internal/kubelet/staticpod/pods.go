// Package staticpod keeps the static pods of a node: it merges what its sources (a directory, a
// URL) have, passes it to the table of workers, and maintains an object in the API for each, so
// that people see it.
package staticpod

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/pods"
)

// Table runs the pods; *podworker.Table implements it.
type Table interface {
	Set(pod *v1.Pod, static bool)
	Remove(uid types.UID, last *v1.Pod)
	// Lingering returns the names of pods that were removed, or replaced by others, and are not gone yet.
	Lingering() sets.Set[types.NamespacedName]
}

// Status writes the statuses of static pods to their mirrors; *status.Manager implements it.
type Status interface {
	SetMirror(static types.UID, mirror *v1.Pod)
}

// Deps are what static pods need.
type Deps struct {
	Table  Table
	Status Status
	Client kubernetes.Interface // nil without an API server
	// Node returns the node's object, which owns the mirrors; it has no UID before the
	// node is registered.
	Node func() *v1.Node
	// Listed reports whether the pods that the API server has are known.
	Listed func() bool
	// Settled reports whether all sources have reported what they have: until then, one of them may
	// still have a pod that none has had so far.
	Settled func() bool
}

// Pods are the static pods of a node. It is the only writer of their mirrors; the
// status of a mirror goes through package status.
type Pods struct {
	deps Deps
	wake chan struct{}

	// setting serialises updates from sources together with what follows from them.
	setting sync.Mutex
	from    map[string][]*v1.Pod // by source
	byUID   map[types.UID]*v1.Pod

	mu     sync.Mutex
	static map[types.NamespacedName]*v1.Pod
	mirror map[types.NamespacedName]*v1.Pod
	// over has the mirrors of pods that were removed. If such a pod is put back, it gets another one for its next life.
	over map[types.UID]bool
}

// New returns Pods without any pods.
func New(deps Deps) *Pods {
	return &Pods{
		deps: deps, wake: make(chan struct{}, 1), from: map[string][]*v1.Pod{},
		static: map[types.NamespacedName]*v1.Pod{}, mirror: map[types.NamespacedName]*v1.Pod{}, over: map[types.UID]bool{},
	}
}

// Set takes over what a source ("file", "http") has now. If two pods have the same UID, the first
// source's counts.
func (p *Pods) Set(from string, pods []*v1.Pod) {
	p.setting.Lock()
	defer p.setting.Unlock()
	before := p.byUID
	p.byUID, p.from[from] = map[types.UID]*v1.Pod{}, pods
	var all []*v1.Pod
	for _, name := range slices.Sorted(maps.Keys(p.from)) {
		for _, pod := range p.from[name] {
			if p.byUID[pod.UID] == nil {
				pod = seenBefore(before[pod.UID], pod)
				p.byUID[pod.UID] = pod
				all = append(all, pod)
			}
		}
	}
	for uid, pod := range before {
		if p.byUID[uid] == nil {
			p.deps.Table.Remove(uid, nil)
			p.endMirror(pod)
		}
	}
	p.mu.Lock()
	p.static = map[types.NamespacedName]*v1.Pod{}
	for _, pod := range all {
		p.static[nameOf(pod)] = pod
		if before[pod.UID] != pod {
			p.linkLocked(pod) // its mirror may have been seen first, and its worker asks for what it says
		}
	}
	p.mu.Unlock()
	for _, pod := range all {
		if before[pod.UID] != pod {
			p.deps.Table.Set(pod, true)
		}
	}
	p.Poke()
}

// endMirror gives up the mirror of a pod that was removed.
func (p *Pods) endMirror(pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mirror := p.mirror[nameOf(pod)]; mirror != nil {
		p.over[mirror.UID] = true
	}
	p.deps.Status.SetMirror(pod.UID, nil)
}

// seenBefore returns the old pod if the new one is the same. If the content of a manifest that sets
// its UID has changed, the new pod keeps the time at which the old one was first seen.
func seenBefore(old, pod *v1.Pod) *v1.Pod {
	if old == nil || old == pod {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Annotations[pods.AnnotationConfigSeen] = old.Annotations[pods.AnnotationConfigSeen]
	if equality.Semantic.DeepEqual(old.Spec, pod.Spec) && maps.Equal(old.Labels, pod.Labels) && maps.Equal(old.Annotations, pod.Annotations) {
		return old
	}
	return pod
}
