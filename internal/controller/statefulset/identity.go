package statefulset

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// podName returns the name of the pod with the ordinal.
func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// ordinalOf returns the ordinal of a pod of the set, by its name. The pod is no member if the name is
// another one.
func ordinalOf(set *appsv1.StatefulSet, pod string) (ordinal int, member bool) {
	text, ok := strings.CutPrefix(pod, set.Name+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, false
	}
	return int(n), true
}

// first returns the lowest ordinal that the set should have, and size how many follow from there.
func first(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func size(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// partition returns from which replica on pods have the new revision.
func partition(set *appsv1.StatefulSet) int {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

// Ordinal returns the ordinal of a pod that the set controls, and whether it has one at all, and one
// that the set wants.
func Ordinal(set *appsv1.StatefulSet, p *v1.Pod) (ordinal int, member, isWanted bool) {
	ordinal, member = ordinalOf(set, p.Name)
	return ordinal, member, member && wanted(set, ordinal)
}

// Range returns the lowest ordinal that the set wants, how many follow from there, and below which one
// pods keep the old revision. There may be very many.
func Range(set *appsv1.StatefulSet) (lowest, n, keepOld int) {
	return first(set), size(set), first(set) + partition(set)
}

// PodName returns the name of the pod with the ordinal.
func PodName(set *appsv1.StatefulSet, ordinal int) string { return podName(set, ordinal) }

func wanted(set *appsv1.StatefulSet, ordinal int) bool {
	return ordinal >= first(set) && ordinal-first(set) < size(set)
}

func revisionOf(p *v1.Pod) string { return p.Labels[appsv1.StatefulSetRevisionLabel] }

// newPod returns the pod with the ordinal, of the revision that it should start with.
func newPod(f facts, ordinal int) *v1.Pod {
	rev := f.update
	if startsOld(f.set, ordinal-first(f.set)) {
		rev = f.current
	}
	p := pods.FromTemplate(rev.template, f.set, kind)
	p.Name = podName(f.set, ordinal)
	identify(p, ordinal)
	p.Labels[appsv1.StatefulSetRevisionLabel] = rev.name
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, f.set.Spec.ServiceName
	mountClaims(f.set, p, ordinal)
	return p
}

// startsOld reports whether the i-th replica starts with the current revision: those below the
// partition or, without one, as many as the status counts.
func startsOld(set *appsv1.StatefulSet, i int) bool {
	strategy := set.Spec.UpdateStrategy
	if strategy.RollingUpdate != nil {
		return i < partition(set)
	}
	return strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && i < int(set.Status.CurrentReplicas)
}

// identify sets the labels by which a pod is known.
func identify(p *v1.Pod, ordinal int) {
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// mountClaims makes the pod's volumes those of the set's claim templates, besides its others.
func mountClaims(set *appsv1.StatefulSet, p *v1.Pod, ordinal int) {
	var volumes []v1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		volumes = append(volumes, v1.Volume{Name: t.Name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, t, ordinal)},
		}})
	}
	for _, v := range p.Spec.Volumes {
		if !slices.ContainsFunc(volumes, func(c v1.Volume) bool { return c.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	p.Spec.Volumes = volumes
}

// corrected returns the pod with the identity and the volumes that it should have, or nil if it has
// them.
func corrected(set *appsv1.StatefulSet, p *v1.Pod, ordinal int) *v1.Pod {
	named, mounted := p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name, hasClaims(set, p, ordinal)
	if named && mounted {
		return nil
	}
	next := p.DeepCopy()
	if !named {
		identify(next, ordinal)
	}
	if !mounted {
		mountClaims(set, next, ordinal)
	}
	return next
}

func hasClaims(set *appsv1.StatefulSet, p *v1.Pod, ordinal int) bool {
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(set, t, ordinal)
		}) {
			return false
		}
	}
	return true
}
