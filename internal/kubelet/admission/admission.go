// Package admission decides which pods may run on the node, and with which resources: one pod at a
// time, in the order in which they arrive (those that the API server has when the kubelet starts:
// in the order of their creation). The pods' workers keep the decisions in the pods' records.
package admission

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/shutdown"
)

// Pods is what admission needs of the pods' workers. *podworker.Pods implements it.
type Pods interface {
	List() []*podworker.Snapshot
	Get(uid types.UID) (podworker.Snapshot, bool)
	// Leaving reports whether a pod is ending or is about to.
	Leaving(uid types.UID) bool
	Wake(uid types.UID)
	Evict(uid types.UID, e podplan.Ending)
}

// Conditions of the node under which it admits no pods, or only critical ones.
type Conditions struct {
	// GoingDown: the machine is shutting down, and no more pods are admitted.
	GoingDown atomic.Bool
	// Pressure: the node is short of something, or was a moment ago.
	Pressure eviction.Conditions
}

// Devices are those of device plugins. PluginDevices implements it.
type Devices interface {
	// Waits reports whether a pod should wait for plugins that are expected back.
	Waits(pod *v1.Pod) bool
	// Choose begins to choose devices for a pod, among those that nobody holds.
	Choose(pod *v1.Pod, held []podplan.Devices, preferred devices.Preferred) DeviceChoice
	// Prefers reports whether plugins may have a preference.
	Prefers(pod *v1.Pod) bool
	// Allocate asks the plugins what the pod's containers need for their devices.
	Allocate(ctx context.Context, chosen podplan.Devices) (podplan.Devices, error)
}

// DeviceChoice has the devices of one pod. *devices.Choice implements it.
type DeviceChoice interface {
	numa.Source
	Chosen() podplan.Devices
	// Ask asks the plugins which devices they would have chosen.
	Ask(ctx context.Context) devices.Preferred
}

// PluginDevices are the devices of a manager.
type PluginDevices struct{ *devices.Manager }

// Choose implements Devices.
func (p PluginDevices) Choose(pod *v1.Pod, held []podplan.Devices, preferred devices.Preferred) DeviceChoice {
	return p.Manager.Choose(pod, held, preferred)
}

// Config is what admission needs to know of the node.
type Config struct {
	// Devices may be nil: then no plugin has any.
	Devices Devices
	// CPUs decides who gets CPUs of their own; nil if nobody does.
	CPUs *cpus.Manager
	// Memory decides who gets memory of certain NUMA nodes; nil if nobody does. NUMA aligns all that pods get; nil if
	// nothing does.
	Memory     *memory.Manager
	NUMA       *numa.Manager
	Conditions *Conditions
	// Node returns the node as it was last seen.
	Node func() *v1.Node
	// Look fetches the node from the API server, if there is one: its labels may have just changed.
	Look           func(context.Context)
	AllowedSysctls []string
	// AppArmor is true if the kernel enforces AppArmor profiles.
	AppArmor bool
	// Refused is called for each pod that is not admitted.
	Refused func(pod *v1.Pod, v podplan.Verdict)
	// Preempted is called for each pod that is evicted for a critical one, with the resource that
	// the critical pod lacked.
	Preempted func(resource string)
	// Changed is called when pods hold more of the node's resources, or less.
	Changed func()
}

// Admission decides on pods. The zero value is not usable; see New.
type Admission struct {
	cfg  Config
	pods Pods

	listed chan struct{} // closed when all pods are known

	mu sync.Mutex // no I/O under it
	// decided has the verdicts that the pods' workers have not fetched yet.
	decided map[types.UID]podplan.Verdict
	// admitting has the pods whose worker has the verdict but has not published it yet.
	admitting map[types.UID]bool
	// chosen has what the pods in admitting got, and those about to be.
	chosen map[types.UID]given
	// waiting has the pods that can be admitted once others have gone.
	waiting map[types.UID]bool
	// granted has, by UID, the pods whose new resources their worker has not published yet.
	granted map[types.UID]*v1.Pod
	// deferred has the pods that wait for room to grow.
	deferred map[types.UID]bool
}

var _ podworker.Admission = (*Admission)(nil)

// New returns an Admission. Until Listed is called it decides on static pods only.
func New(cfg Config, pods Pods) *Admission {
	if cfg.Devices == nil {
		cfg.Devices = PluginDevices{&devices.Manager{}}
	}
	return &Admission{
		cfg: cfg, pods: pods, listed: make(chan struct{}), decided: map[types.UID]podplan.Verdict{}, admitting: map[types.UID]bool{},
		chosen:  map[types.UID]given{},
		waiting: map[types.UID]bool{}, granted: map[types.UID]*v1.Pod{}, deferred: map[types.UID]bool{},
	}
}

// Admit implements podworker.Admission: it returns what was decided on a pod, or decides now. A pod
// of the API server waits until all pods that the server has are in the table: those that already
// run come first.
func (a *Admission) Admit(ctx context.Context, pod *v1.Pod, static bool) podplan.Verdict {
	if !static {
		select {
		case <-a.listed:
		case <-ctx.Done():
			return podplan.Verdict{} // the next kubelet decides
		}
	}
	v, again := a.hand(pod, static, false, nil)
	if again {
		a.cfg.Look(ctx)
		v, _ = a.hand(pod, static, true, a.ask(ctx, pod))
	}
	if v.Admitted && v.Devices != nil {
		return a.allocate(ctx, pod, v)
	}
	return v
}

// hand gives a pod's worker the verdict. The node's labels may have just changed: unless they were
// looked up, a pod that does not match them has to be judged again. So has one whose devices' plugins
// were not asked what they prefer.
func (a *Admission) hand(pod *v1.Pod, static, looked bool, preferred devices.Preferred) (v podplan.Verdict, again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if again = !a.decideLocked(pod, static, looked, preferred); again {
		return podplan.Verdict{}, true
	}
	v = a.decided[pod.UID]
	delete(a.decided, pod.UID)
	if v.Admitted {
		a.admitting[pod.UID] = true
		a.cfg.Changed()
	}
	return v, false
}

// decideLocked decides on a pod, once, against those that were admitted before. If others have to
// go first, the pod waits. It reports whether the decision stands; a mismatch with labels that were
// not looked up does not, nor does a choice of devices that a plugin might not prefer.
func (a *Admission) decideLocked(pod *v1.Pod, static, looked bool, preferred devices.Preferred) bool {
	if _, ok := a.decided[pod.UID]; ok {
		return true
	}
	if !looked && a.cfg.Devices.Prefers(pod) {
		return false
	}
	v := a.judgeLocked(pod, static, preferred)
	switch {
	case v.Reason == podplan.ReasonNodeAffinity && !looked:
		return false
	case !v.Admitted && v.Reason == "":
		a.waiting[pod.UID] = true
		return true
	case !v.Admitted:
		a.cfg.Refused(pod, v)
	}
	delete(a.waiting, pod.UID)
	a.decided[pod.UID] = v
	if v.Devices != nil || v.CPUs != nil || v.Memory != nil {
		a.chosen[pod.UID] = given{v.Devices, v.CPUs, v.Memory}
	}
	return true
}

func (a *Admission) judgeLocked(pod *v1.Pod, static bool, preferred devices.Preferred) podplan.Verdict {
	if a.cfg.Conditions.GoingDown.Load() {
		return podplan.Verdict{Reason: shutdown.ReasonNotAdmitted, Message: shutdown.MessageNotAdmitted}
	}
	if message, refused := eviction.Refuses(pod, a.cfg.Conditions.Pressure.List()); refused {
		return podplan.Verdict{Reason: podplan.ReasonEvicted, Message: message}
	}
	in := podplan.AdmitInput{
		Pod: pod, Node: a.cfg.Node(), Others: a.othersLocked(pod.UID), Static: static, AllowedSysctls: a.cfg.AllowedSysctls, AppArmor: a.cfg.AppArmor,
	}
	if a.cfg.Devices.Waits(pod) {
		return podplan.Verdict{}
	}
	given, soon, err := a.chooseLocked(pod, preferred)
	switch {
	case soon:
		return podplan.Verdict{}
	case err != nil:
		return unexpected(err)
	}
	v := podplan.Admit(in)
	if v.Admitted {
		v.Devices, v.CPUs, v.Memory = given.devices, given.cpus, given.memory
	}
	switch {
	case v.Admitted, v.Reason == podplan.ReasonNodeAffinity:
		return v
	case a.roomSoon(in):
		return podplan.Verdict{}
	case strings.HasPrefix(v.Reason, podplan.ReasonOutOf) && pods.IsCritical(pod):
		return a.preempt(in, strings.TrimPrefix(v.Reason, podplan.ReasonOutOf))
	}
	return v
}

// Listed says that all pods of the API server are in the table, and decides on them, oldest first:
// otherwise their workers would race for the room. ran are those that had a sandbox when the
// kubelet started.
func (a *Admission) Listed(ran map[types.UID]bool) {
	defer close(a.listed)
	a.mu.Lock()
	defer a.mu.Unlock()
	var undecided []*podworker.Snapshot
	for _, s := range a.pods.List() {
		switch {
		case s.Static || s.Absent || a.pods.Leaving(s.Pod.UID) || s.Input.Record.Verdict != nil:
		case ran[s.Pod.UID]: // its record was lost: its worker will see that it was admitted
			a.admitting[s.Pod.UID] = true
		default:
			undecided = append(undecided, s)
		}
	}
	a.decideAllLocked(undecided)
}

// Arrived decides on a pod that has just arrived, so that pods are decided on in the order of their
// arrival.
func (a *Admission) Arrived(pod *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.pods.Leaving(pod.UID) {
		a.decideLocked(pod, false, false, nil)
	}
}

// decideAllLocked decides on pods, oldest first. It returns those whose workers have to ask.
func (a *Admission) decideAllLocked(pods []*podworker.Snapshot) (open []types.UID) {
	slices.SortFunc(pods, func(a, b *podworker.Snapshot) int {
		return cmp.Or(a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time),
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	for _, s := range pods {
		if !a.decideLocked(s.Pod, s.Static, false, nil) {
			open = append(open, s.Pod.UID)
		}
	}
	return open
}

// roomSoon reports whether a pod is refused only because of pods that are about to end: the
// scheduler may no longer count those.
func (a *Admission) roomSoon(in podplan.AdmitInput) bool {
	all := len(in.Others)
	in.Others = slices.DeleteFunc(slices.Clone(in.Others), func(p *v1.Pod) bool { return a.pods.Leaving(p.UID) })
	return len(in.Others) < all && podplan.Admit(in).Admitted
}

// preempt makes room for a critical pod. The zero verdict means that others are going for it.
func (a *Admission) preempt(in podplan.AdmitInput, resource string) podplan.Verdict {
	leaving := map[types.UID]bool{}
	for _, o := range in.Others {
		leaving[o.UID] = a.pods.Leaving(o.UID)
	}
	victims, v := podplan.Preempt(in, leaving)
	if v != nil {
		return *v
	}
	for _, p := range victims {
		a.cfg.Preempted(resource)
		a.pods.Evict(p.UID, podplan.Ending{
			Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonPreempting, Message: podplan.MessagePreempting,
			Disruption: v1.PodReasonTerminationByKubelet, DisruptionMessage: podplan.MessagePreempted,
		})
	}
	return podplan.Verdict{}
}
