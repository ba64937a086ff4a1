package kubelet

import (
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

// admit decides on a pod, one at a time, against those that were admitted before.
// A pod of the API server waits until all that the server has are in the table:
// those that run already come first. The zero verdict says nothing yet.
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
	if k.goingDown.Load() {
		return k.refuse(pod, podplan.Verdict{Reason: shutdown.ReasonNotAdmitted, Message: shutdown.MessageNotAdmitted})
	}
	if k.pressed.Load() && !podplan.IsCritical(pod) {
		return k.refuse(pod, podplan.Verdict{Reason: podplan.ReasonEvicted, Message: eviction.MessageCondition})
	}
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	delete(k.preempting, pod.UID)
	in := podplan.AdmitInput{
		Pod: pod, Node: k.node.Node(), Others: k.othersLocked(pod.UID), Static: static, AllowedSysctls: k.cfg.AllowedUnsafeSysctls,
		AppArmor: appArmorEnabled(),
	}
	v := podplan.Admit(in)
	if v.Reason == podplan.ReasonNodeAffinity {
		// Its labels may have changed a moment ago.
		k.lookAtNode(ctx)
		in.Node = k.node.Node()
		v = podplan.Admit(in)
	}
	if !v.Admitted && k.roomSoonLocked(in) {
		k.preempting[pod.UID] = true
		return podplan.Verdict{}
	}
	if strings.HasPrefix(v.Reason, podplan.ReasonOutOf) && podplan.IsCritical(pod) {
		if v = k.preemptLocked(in, strings.TrimPrefix(v.Reason, podplan.ReasonOutOf)); v.Reason == "" {
			return v // it is asked for again when the others have gone
		}
	}
	if !v.Admitted {
		return k.refuse(pod, v)
	}
	// Its worker publishes the verdict a moment later; until then it counts here.
	k.admitting[pod.UID] = true
	return v
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

// roomSoonLocked tells whether a pod is refused only for what pods hold that were deleted
// by force, and whose containers are about to end: the scheduler sees them no more.
func (k *Kubelet) roomSoonLocked(in podplan.AdmitInput) bool {
	all := len(in.Others)
	in.Others = slices.DeleteFunc(slices.Clone(in.Others), func(p *v1.Pod) bool { return k.table.Unwanted(p.UID) })
	return len(in.Others) < all && podplan.Admit(in).Admitted
}

// preemptLocked makes room for a critical pod. The zero verdict means that others go
// for it, and that it is to be asked for again.
func (k *Kubelet) preemptLocked(in podplan.AdmitInput, signal string) podplan.Verdict {
	leaving := map[types.UID]bool{}
	for _, s := range k.table.List() {
		leaving[s.Pod.UID] = s.Plan.Record.Ending != nil || k.evicted[s.Pod.UID]
	}
	victims, v := podplan.Preempt(in, leaving)
	if v != nil {
		return *v
	}
	k.preempting[in.Pod.UID] = true
	for _, p := range victims {
		k.evicted[p.UID] = true
		metrics.Preemptions.WithLabelValues(signal).Inc()
		k.table.Evict(p.UID, podplan.Ending{
			Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonPreempting, Message: podplan.MessagePreempting,
			Disruption: v1.PodReasonTerminationByKubelet, DisruptionMessage: podplan.MessagePreempted,
		})
	}
	return podplan.Verdict{}
}

// refuse tells of a pod that is not admitted.
func (k *Kubelet) refuse(pod *v1.Pod, v podplan.Verdict) podplan.Verdict {
	metrics.Rejections.WithLabelValues(rejection(v.Reason)).Inc()
	k.events.Eventf(pod, v1.EventTypeWarning, v.Reason, "%s", v.Message)
	return v
}

// trouble says what besides the runtime keeps the node from being ready.
func (k *Kubelet) trouble() string {
	if k.goingDown.Load() {
		return shutdown.MessageShuttingDown
	}
	return ""
}

// othersLocked are the pods that hold resources of the node, with what they hold.
func (k *Kubelet) othersLocked(uid types.UID) []*v1.Pod {
	var others []*v1.Pod
	for _, s := range k.table.List() {
		if s.Pod.UID == uid {
			continue
		}
		if s.Input.Record.Verdict != nil {
			delete(k.admitting, s.Pod.UID)
		}
		if s.At.IsZero() { // its worker has not looked yet, as after a restart
			if rec, err := k.records.Read(s.Pod.UID); err == nil {
				s.Input.Record = rec
			}
		}
		if !taken(s) && !k.admitting[s.Pod.UID] {
			continue
		}
		pod := podplan.WithAllocated(s.Pod, s.Input.Record.Verdict)
		if g := k.granted[s.Pod.UID]; g != nil {
			pod = g
		}
		others = append(others, pod)
	}
	return others
}

// taken tells whether a pod holds resources of the node.
func taken(s podworker.Snapshot) bool {
	v := s.Input.Record.Verdict
	return v != nil && v.Admitted && s.Plan.Life != podplan.PodTerminated
}
