package podplan

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

const (
	// ReasonPreempting is why a pod ends to make room for a critical one.
	ReasonPreempting = "Preempting"
	// MessagePreempting says so in its status.
	MessagePreempting = "Preempted in order to admit critical pod"
	// MessagePreempted says so in its condition DisruptionTarget.
	MessagePreempted = "Pod was preempted by Kubelet to accommodate a critical pod."

	reasonUnexpected = "UnexpectedAdmissionError"
)

// need is how much of a resource is missing.
type need struct {
	name   v1.ResourceName
	amount int64
}

// Preempt chooses the pods that must go to make room for a critical pod. Pods that are already
// leaving are not chosen again: if there are no victims, waiting is enough. A non-nil verdict means
// that nothing helps.
func Preempt(in AdmitInput, leaving map[types.UID]bool) ([]*v1.Pod, *Verdict) {
	for _, check := range slices.Concat(first, then) {
		if reason, message := check(in); reason != "" {
			return nil, &Verdict{Reason: reason, Message: message}
		}
	}
	staying := in
	staying.Others = slices.DeleteFunc(slices.Clone(in.Others), func(p *v1.Pod) bool { return leaving[p.UID] })
	needs := missing(staying)
	victims, ok := victims(in.Pod, staying.Others, needs)
	if !ok {
		return nil, &Verdict{Reason: reasonUnexpected, Message: "Unexpected error while attempting to recover from admission failure: " +
			"preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: " + describe(needs)}
	}
	return victims, nil
}

func describe(needs []need) string {
	var b strings.Builder
	for _, n := range needs {
		fmt.Fprintf(&b, "(res: %v, q: %d), ", n.name, n.amount)
	}
	return "[" + b.String() + "]"
}

// missing returns what the node lacks for the pod.
func missing(in AdmitInput) []need {
	var out []need
	capacity := in.Node.Status.Allocatable
	if pods, ok := capacity[v1.ResourcePods]; ok {
		if over := int64(len(in.Others)) + 1 - pods.Value(); over > 0 {
			out = append(out, need{v1.ResourcePods, over})
		}
	}
	requests := resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
	for _, name := range ordered(requests) {
		have, known := capacity[name]
		if !known {
			continue
		}
		over := request(in.Pod, name) - units(name, have)
		for _, o := range in.Others {
			over += request(o, name)
		}
		if over > 0 && request(in.Pod, name) > 0 {
			out = append(out, need{name, over})
		}
	}
	return out
}

// request returns how much of a resource a pod holds; for the resource "pods", one.
func request(pod *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	q := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})[name]
	return units(name, q)
}

// victims chooses the pods whose loss hurts least: as few guaranteed pods as possible, then as few
// burstable ones, and within each class few pods with small requests.
func victims(pod *v1.Pod, others []*v1.Pod, needs []need) ([]*v1.Pod, bool) {
	classes := map[v1.PodQOSClass][]*v1.Pod{}
	for _, o := range others {
		if preemptable(pod, o) {
			classes[qos.GetPodQOS(o)] = append(classes[qos.GetPodQOS(o)], o)
		}
	}
	bestEffort, burstable, guaranteed := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable], classes[v1.PodQOSGuaranteed]
	if len(less(needs, slices.Concat(bestEffort, burstable, guaranteed))) > 0 {
		return nil, false
	}
	// Each class gives only what the others together cannot.
	fromGuaranteed := choose(guaranteed, less(needs, slices.Concat(bestEffort, burstable)))
	fromBurstable := choose(burstable, less(needs, slices.Concat(bestEffort, fromGuaranteed)))
	fromBestEffort := choose(bestEffort, less(needs, slices.Concat(fromBurstable, fromGuaranteed)))
	return slices.Concat(fromBestEffort, fromBurstable, fromGuaranteed), true
}

func preemptable(by, pod *v1.Pod) bool {
	if pods.IsCritical(by) && !pods.IsCritical(pod) {
		return true
	}
	return by.Spec.Priority != nil && pod.Spec.Priority != nil && *by.Spec.Priority > *pod.Spec.Priority
}

// less returns what is still missing once some pods are gone.
func less(needs []need, gone []*v1.Pod) []need {
	var out []need
	for _, n := range needs {
		for _, p := range gone {
			n.amount -= request(p, n.name)
		}
		if n.amount > 0 {
			out = append(out, n)
		}
	}
	return out
}

// choose repeatedly takes the pod that leaves the least missing; among equals, the one with the
// smaller requests.
func choose(pods []*v1.Pod, needs []need) []*v1.Pod {
	var out []*v1.Pod
	rest := slices.Clone(pods)
	for len(needs) > 0 && len(rest) > 0 {
		best := slices.MinFunc(rest, func(a, b *v1.Pod) int {
			return compareAll(distance(needs, a), distance(needs, b),
				float64(request(a, v1.ResourceMemory)), float64(request(b, v1.ResourceMemory)),
				float64(request(a, v1.ResourceCPU)), float64(request(b, v1.ResourceCPU)))
		})
		needs = less(needs, []*v1.Pod{best})
		out = append(out, best)
		rest = slices.DeleteFunc(rest, func(p *v1.Pod) bool { return p == best })
	}
	return out
}

// compareAll compares pairs of numbers; the first that differs decides.
func compareAll(pairs ...float64) int {
	for i := 0; i+1 < len(pairs); i += 2 {
		switch a, b := pairs[i], pairs[i+1]; {
		case a < b:
			return -1
		case a > b:
			return 1
		}
	}
	return 0
}

// distance returns how much is still missing without the pod: each resource as a share, squared, so
// that all weigh alike.
func distance(needs []need, pod *v1.Pod) float64 {
	sum := 0.0
	for _, n := range needs {
		if left := float64(n.amount - request(pod, n.name)); left > 0 {
			sum += left / float64(n.amount) * left / float64(n.amount)
		}
	}
	return sum
}
