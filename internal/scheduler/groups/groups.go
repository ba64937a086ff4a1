// Package groups knows which pods belong to each pod group (KEP-4671), and how far each of them is on its way to a
// node.
package groups

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
)

// stage is how far a pod is.
type stage int

const (
	waiting stage = iota
	assumed
	assigned
)

type member struct {
	pod   *v1.Pod
	stage stage
}

// Groups is safe for concurrent use. Pods that belong to no group are left out by all methods.
type Groups struct {
	lister schedulinglisters.PodGroupLister // of the objects; nil if the API has none

	mu     sync.Mutex
	groups map[types.NamespacedName]map[types.UID]member
}

var _ fwk.PodGroupManager = (*Groups)(nil)

// New returns one without pods. The lister is nil where the API server has no pod groups.
func New(lister schedulinglisters.PodGroupLister) *Groups {
	return &Groups{lister: lister, groups: map[types.NamespacedName]map[types.UID]member{}}
}

// Waits records a pod that has no node. One that is assumed on a node stays so.
func (g *Groups) Waits(pod *v1.Pod) {
	g.put(pod, func(m member, known bool) member {
		if !known || m.stage == assigned {
			m.stage = waiting
		}
		return member{pod, m.stage}
	})
}

// Assume records a pod that has a node as far as the scheduler is concerned.
func (g *Groups) Assume(pod *v1.Pod) {
	g.put(pod, func(member, bool) member { return member{pod, assumed} })
}

// Assign records a pod that is bound.
func (g *Groups) Assign(pod *v1.Pod) {
	g.put(pod, func(member, bool) member { return member{pod, assigned} })
}

// Forget undoes Assume. A pod that was bound or removed meanwhile stays as it is.
func (g *Groups) Forget(pod *v1.Pod) {
	name, ok := pods.Group(pod)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m, ok := g.groups[name][pod.UID]; ok && m.stage == assumed {
		g.groups[name][pod.UID] = member{m.pod, waiting}
	}
}

// Remove forgets a pod.
func (g *Groups) Remove(pod *v1.Pod) {
	name, ok := pods.Group(pod)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups[name], pod.UID)
	if len(g.groups[name]) == 0 {
		delete(g.groups, name)
	}
}

func (g *Groups) put(pod *v1.Pod, next func(was member, known bool) member) {
	name, ok := pods.Group(pod)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	members := g.groups[name]
	if members == nil {
		members = map[types.UID]member{}
		g.groups[name] = members
	}
	was, known := members[pod.UID]
	members[pod.UID] = next(was, known)
}

// PodGroups returns the lister of the objects.
func (g *Groups) PodGroups() fwk.PodGroupLister { return objects{g.lister} }

// PodGroupStates returns the groups' pods.
func (g *Groups) PodGroupStates() fwk.PodGroupStateLister { return states{g} }

// CompositePodGroups returns a lister of nothing: their gate cannot be opened.
func (g *Groups) CompositePodGroups() fwk.CompositePodGroupLister { return noComposites{} }

// CompositePodGroupStates returns a lister of nothing: their gate cannot be opened.
func (g *Groups) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

// BuildHierarchySnapshotFromPod returns the groups themselves: there are no groups of groups.
func (g *Groups) BuildHierarchySnapshotFromPod(*v1.Pod) (fwk.PodGroupManager, error) { return g, nil }

// GetRootKeyForGroup returns the group itself: there are no groups of groups.
func (g *Groups) GetRootKeyForGroup(key fwk.EntityKey) (fwk.EntityKey, bool, error) {
	_, err := g.PodGroups().Get(key.Namespace, key.Name)
	return key, err == nil, nil
}

// Of returns the pod's group, or nil if it has none or it does not exist.
func Of(all fwk.PodGroupLister, pod *v1.Pod) *schedulingv1beta1.PodGroup {
	name, ok := pods.Group(pod)
	if !ok {
		return nil
	}
	group, err := all.Get(name.Namespace, name.Name)
	if err != nil {
		return nil // the lister's only error: there is none
	}
	return group
}

// Priority returns how important the pod is where others want its place: in a group, as the group is.
func Priority(all fwk.PodGroupLister, pod *v1.Pod) int32 {
	if group := Of(all, pod); group != nil {
		return ptr.Deref(group.Spec.Priority, 0)
	}
	return framework.Priority(pod)
}

// objects are the pod groups of the API.
type objects struct {
	lister schedulinglisters.PodGroupLister
}

// Get returns the group, or a "not found" error of the API.
func (o objects) Get(namespace, name string) (*schedulingv1beta1.PodGroup, error) {
	if o.lister == nil {
		return nil, apierrors.NewNotFound(schedulingv1beta1.Resource("podgroups"), name)
	}
	return o.lister.PodGroups(namespace).Get(name)
}

// states are the pods of the groups.
type states struct{ groups *Groups }

// Get returns the group's pods as they are now, or an error if the scheduler knows no pod of such a group.
func (s states) Get(namespace, name string) (fwk.PodGroupState, error) {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	members, ok := s.groups.groups[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, fmt.Errorf("pod group %s/%s: %w", namespace, name, fwk.ErrNotFound)
	}
	out := make(State, 0, len(members))
	for _, m := range members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.pod.Name, b.pod.Name) })
	return out, nil
}

// State is a group's pods at one moment, ordered by name.
type State []member

var _ fwk.PodGroupState = State(nil)

func (s State) count(in ...stage) (n int) {
	for _, m := range s {
		if slices.Contains(in, m.stage) {
			n++
		}
	}
	return n
}

func (s State) uids(in ...stage) sets.Set[types.UID] {
	out := sets.New[types.UID]()
	for _, m := range s {
		if slices.Contains(in, m.stage) {
			out.Insert(m.pod.UID)
		}
	}
	return out
}

// AllPods returns all of them.
func (s State) AllPods() sets.Set[types.UID] { return s.uids(waiting, assumed, assigned) }

// AllPodsCount returns how many there are.
func (s State) AllPodsCount() int { return len(s) }

// UnscheduledPods returns those that have no node, by namespace/name.
func (s State) UnscheduledPods() map[string]*v1.Pod {
	out := map[string]*v1.Pod{}
	for _, m := range s {
		if m.stage == waiting {
			out[m.pod.Namespace+"/"+m.pod.Name] = m.pod
		}
	}
	return out
}

// AssumedPods returns those that have a node only as far as the scheduler is concerned.
func (s State) AssumedPods() sets.Set[types.UID] { return s.uids(assumed) }

// AssignedPods returns those that are bound.
func (s State) AssignedPods() sets.Set[types.UID] { return s.uids(assigned) }

// ScheduledPods returns those that are assumed or bound.
func (s State) ScheduledPods() []*v1.Pod {
	var out []*v1.Pod
	for _, m := range s {
		if m.stage != waiting {
			out = append(out, m.pod)
		}
	}
	return out
}

// ScheduledPodsCount returns how many are assumed or bound.
func (s State) ScheduledPodsCount() int { return s.count(assumed, assigned) }

var errNoComposites = fmt.Errorf("composite pod groups are not supported by this scheduler: %w", fwk.ErrNotFound)

type noComposites struct{}

// Get returns an error.
func (noComposites) Get(string, string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, errNoComposites
}

type noCompositeStates struct{}

// Get returns an error.
func (noCompositeStates) Get(string, string) (fwk.CompositePodGroupState, error) {
	return nil, errNoComposites
}
