package kubelet

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/shutdown"
)

// admit returns what was decided on a pod, or decides now. A pod of the API server waits
// until all that the server has are in the table: those that run already come first. The
// zero verdict says nothing yet: others have to go first, and the pod is woken when they have.
func (k *Kubelet) admit(ctx context.Context, pod *v1.Pod, static bool) podplan.Verdict {
	if !static {
		select {
		case <-k.apiListed:
		case <-ctx.Done():
			return podplan.Verdict{} // the next kubelet decides
		}
	}
	if seen, ok := k.firstSeen.LoadAndDelete(pod.UID); ok {
		metrics.PodWorkerStart.Observe(time.Since(seen.(time.Time)).Seconds())
	}
	v, again := k.hand(pod, static, false)
	if again {
		k.lookAtNode(ctx)
		v, _ = k.hand(pod, static, true)
	}
	return v
}

// hand gives a pod's worker what is decided. The node's labels may have changed a moment
// ago: unless they were looked at, a pod that does not match them is to be judged again.
func (k *Kubelet) hand(pod *v1.Pod, static, looked bool) (v podplan.Verdict, again bool) {
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	if again = !k.decideLocked(pod, static, looked); again {
		return podplan.Verdict{}, true
	}
	v = k.decided[pod.UID]
	delete(k.decided, pod.UID)
	if v.Admitted {
		k.admitting[pod.UID] = true
		k.sharesChanged()
	}
	return v, false
}

// decideLocked decides on a pod, once, against those that were admitted before, unless
// others have to go first: then it waits. It tells whether that stands, which a mismatch of
// labels that were not looked at does not.
func (k *Kubelet) decideLocked(pod *v1.Pod, static, looked bool) bool {
	if _, ok := k.decided[pod.UID]; ok {
		return true
	}
	v := k.judgeLocked(pod, static)
	switch {
	case v.Reason == podplan.ReasonNodeAffinity && !looked:
		return false
	case !v.Admitted && v.Reason == "":
		k.waiting[pod.UID] = true
		return true
	case !v.Admitted:
		k.refuse(pod, v)
	}
	delete(k.waiting, pod.UID)
	k.decided[pod.UID] = v
	return true
}

func (k *Kubelet) judgeLocked(pod *v1.Pod, static bool) podplan.Verdict {
	if k.goingDown.Load() {
		return podplan.Verdict{Reason: shutdown.ReasonNotAdmitted, Message: shutdown.MessageNotAdmitted}
	}
	if k.pressed.Load() && !podplan.IsCritical(pod) {
		return podplan.Verdict{Reason: podplan.ReasonEvicted, Message: eviction.MessageCondition}
	}
	in := podplan.AdmitInput{
		Pod: pod, Node: k.node.Node(), Others: k.othersLocked(pod.UID), Static: static, AllowedSysctls: k.cfg.AllowedUnsafeSysctls,
		AppArmor: appArmorEnabled(),
	}
	v := podplan.Admit(in)
	switch {
	case v.Admitted, v.Reason == podplan.ReasonNodeAffinity:
		return v
	case k.roomSoon(in):
		return podplan.Verdict{}
	case strings.HasPrefix(v.Reason, podplan.ReasonOutOf) && podplan.IsCritical(pod):
		return k.preempt(in, strings.TrimPrefix(v.Reason, podplan.ReasonOutOf))
	}
	return v
}

// admitListed decides on the pods that the API server has when the kubelet starts, in the
// order of their creation: their workers would race for the room.
func (k *Kubelet) admitListed() {
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	var undecided []podworker.Snapshot
	for _, s := range k.table.List() {
		switch {
		case s.Static || s.Absent || k.table.Leaving(s.Pod.UID) || k.recordOf(&s).Verdict != nil:
		case k.ran[s.Pod.UID]: // its record was lost: its worker will see that it was admitted
			k.admitting[s.Pod.UID] = true
		default:
			undecided = append(undecided, s)
		}
	}
	k.ran = nil
	k.decideAllLocked(undecided)
}

// admitArrived decides on a pod that has just come, so that pods are decided on in the order
// in which they come.
func (k *Kubelet) admitArrived(pod *v1.Pod) {
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	if !k.table.Leaving(pod.UID) {
		k.decideLocked(pod, false, false)
	}
}

// decideAllLocked decides on pods, the oldest first.
func (k *Kubelet) decideAllLocked(pods []podworker.Snapshot) {
	slices.SortFunc(pods, func(a, b podworker.Snapshot) int {
		return cmp.Or(a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time),
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	for _, s := range pods {
		k.decideLocked(s.Pod, s.Static, false)
	}
}

// appArmorEnabled tells whether the kernel enforces AppArmor profiles.
func appArmorEnabled() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(on), "Y")
}

// rejections are the reasons that the metric tells apart, as upstream does.
var rejections = []string{
	"AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported", "UnexpectedAdmissionError",
	"OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "PodFeatureUnsupported", "SysctlForbidden", shutdown.ReasonNotAdmitted,
}

// rejection is the metric's label for a reason: of resources that clusters make up
// there may be any number.
func rejection(reason string) string {
	switch {
	case slices.Contains(rejections, reason):
		return reason
	case strings.HasPrefix(reason, podplan.ReasonOutOf):
		return "OutOfExtendedResources"
	default:
		return "Other"
	}
}

// lookAtNode takes over the node's labels as the API server has them now.
func (k *Kubelet) lookAtNode(ctx context.Context) {
	if k.deps.Client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n, err := k.deps.Client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Labels of the node are those last seen", "err", err)
		return
	}
	k.node.Observe(n)
}

// roomSoon tells whether a pod is refused only for what pods hold that are about to end:
// the scheduler may see them no more.
func (k *Kubelet) roomSoon(in podplan.AdmitInput) bool {
	all := len(in.Others)
	in.Others = slices.DeleteFunc(slices.Clone(in.Others), func(p *v1.Pod) bool { return k.table.Leaving(p.UID) })
	return len(in.Others) < all && podplan.Admit(in).Admitted
}

// preempt makes room for a critical pod. The zero verdict means that others go for it.
func (k *Kubelet) preempt(in podplan.AdmitInput, signal string) podplan.Verdict {
	leaving := map[types.UID]bool{}
	for _, o := range in.Others {
		leaving[o.UID] = k.table.Leaving(o.UID)
	}
	victims, v := podplan.Preempt(in, leaving)
	if v != nil {
		return *v
	}
	for _, p := range victims {
		metrics.Preemptions.WithLabelValues(signal).Inc()
		k.table.Evict(p.UID, podplan.Ending{
			Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonPreempting, Message: podplan.MessagePreempting,
			Disruption: v1.PodReasonTerminationByKubelet, DisruptionMessage: podplan.MessagePreempted,
		})
	}
	return podplan.Verdict{}
}

// refuse tells of a pod that is not admitted.
func (k *Kubelet) refuse(pod *v1.Pod, v podplan.Verdict) {
	metrics.Rejections.WithLabelValues(rejection(v.Reason)).Inc()
	k.events.Eventf(pod, v1.EventTypeWarning, v.Reason, "%s", v.Message)
}

// trouble says what besides the runtime keeps the node from being ready.
func (k *Kubelet) trouble() string {
	if k.goingDown.Load() {
		return shutdown.MessageShuttingDown
	}
	return ""
}

// othersLocked are the pods that hold resources of the node, with what they hold, and those
// that wait for what they were promised.
func (k *Kubelet) othersLocked(uid types.UID) []*v1.Pod {
	var others []*v1.Pod
	for _, s := range k.table.List() {
		if s.Input.Record.Verdict != nil {
			delete(k.admitting, s.Pod.UID)
		}
		s.Input.Record = k.recordOf(&s)
		if s.Pod.UID == uid || s.AtRest() || !holds(&s) && !k.promised(s.Pod.UID) {
			continue
		}
		others = append(others, k.holding(&s))
	}
	return others
}

// promised tells whether a pod has been admitted, which its worker has not published yet, or
// waits until it can be.
func (k *Kubelet) promised(uid types.UID) bool {
	return k.admitting[uid] || k.waiting[uid] || k.decided[uid].Admitted
}

// holding is a pod with the resources that it holds: by its spec those that it may have, by
// its status those that it still has. The newest status may not have come back from the API
// server yet, where others have seen it.
func (k *Kubelet) holding(s *podworker.Snapshot) *v1.Pod {
	pod := podplan.WithAllocated(s.Pod, s.Input.Record.Verdict)
	if g := k.granted[s.Pod.UID]; g != nil {
		pod = g
	}
	with := *pod
	with.Status = s.Status
	return &with
}

// recordOf is a pod's record, also when its worker has not looked yet, as after a restart.
func (k *Kubelet) recordOf(s *podworker.Snapshot) podplan.Record {
	if !s.At.IsZero() {
		return s.Input.Record
	}
	rec, err := k.records.Read(s.Pod.UID)
	if err != nil {
		return podplan.Record{} // its worker says so
	}
	return rec
}

// holds tells whether a pod holds resources of the node: from its admission until nothing
// of it runs any more, which is before its final phase is told.
func holds(s *podworker.Snapshot) bool {
	v := s.Input.Record.Verdict
	return v != nil && v.Admitted && !s.AtRest()
}
