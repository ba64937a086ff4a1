package replicaset

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// burst is how many pods one reconciliation creates or deletes at most (upstream's value).
const burst = 500

// plan is what has to be done so that a set has as many pods as it should.
type plan struct {
	create int
	remove []*v1.Pod
}

// planFor compares how many replicas a set should have with its active pods. related are the pods
// that do the same work, the set's own among them: a pod that shares its node with many of them is
// removed before one that shares it with few.
func planFor(replicas int32, mine, related []*v1.Pod, now time.Time) plan {
	surplus := len(mine) - int(replicas)
	if surplus <= 0 {
		return plan{create: min(-surplus, burst)}
	}
	candidates := rank(mine, related)
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.compare(b, now) })
	var out plan
	for _, c := range candidates[:min(surplus, burst)] {
		out.remove = append(out.remove, c.pod)
	}
	return out
}

// candidate is a pod that might be removed.
type candidate struct {
	pod        *v1.Pod
	ready      bool
	since      time.Time // it has been ready since then
	cost       int32
	neighbours int   // how many related pods are on its node
	restarts   int32 // of the container that was restarted most
	sidecars   int32 // of the sidecar that was restarted most
}

func rank(mine, related []*v1.Pod) []candidate {
	onNode := map[string]int{}
	for _, p := range related {
		if pods.IsActive(p) {
			onNode[p.Spec.NodeName]++
		}
	}
	var out []candidate
	for _, p := range mine {
		c := candidate{pod: p, cost: deletionCost(p), neighbours: onNode[p.Spec.NodeName]}
		c.since, c.ready = pods.ReadySince(p)
		c.restarts, c.sidecars = restarts(p)
		out = append(out, c)
	}
	return out
}

// compare is negative if a should be removed before b. These are upstream's rules, in their order.
func (a candidate) compare(b candidate, now time.Time) int {
	return cmp.Or(
		compareBool(a.pod.Spec.NodeName != "", b.pod.Spec.NodeName != ""),
		cmp.Compare(phaseOrder(a.pod), phaseOrder(b.pod)),
		compareBool(a.ready, b.ready),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(b.neighbours, a.neighbours),
		a.compareAge(b, a.since, b.since, now),
		cmp.Compare(b.restarts, a.restarts),
		cmp.Compare(b.sidecars, a.sidecars),
		a.compareAge(b, a.pod.CreationTimestamp.Time, b.pod.CreationTimestamp.Time, now),
	)
}

// compareAge compares how long ago two times were: what is younger comes first, and what has no time
// before that. Ages count in powers of two, and among those of the same power the UID decides: so
// that not always the newest pods go, which may all be on the node that came last.
func (a candidate) compareAge(b candidate, at, bt, now time.Time) int {
	switch {
	case at.Equal(bt):
		return 0
	case at.IsZero():
		return -1
	case bt.IsZero():
		return 1
	}
	return cmp.Or(cmp.Compare(power(now.Sub(at)), power(now.Sub(bt))), cmp.Compare(a.pod.UID, b.pod.UID))
}

func power(age time.Duration) int64 {
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phaseOrder(p *v1.Pod) int {
	switch p.Status.Phase {
	case v1.PodRunning:
		return 2
	case v1.PodUnknown: // old clients may still set it
		return 1
	}
	return 0
}

// deletionCost is what the annotation says, or 0 if it says nothing that the API allows.
func deletionCost(p *v1.Pod) int32 {
	text := p.Annotations[v1.PodDeletionCost]
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil || text[0] == '+' || text[0] == '0' {
		return 0
	}
	return int32(cost)
}

// restarts returns how often the container, and the sidecar, that was restarted most was restarted.
func restarts(p *v1.Pod) (containers, sidecars int32) {
	for _, c := range p.Status.ContainerStatuses {
		containers = max(containers, c.RestartCount)
	}
	for _, c := range p.Status.InitContainerStatuses {
		if slices.ContainsFunc(p.Spec.InitContainers, func(s v1.Container) bool { return s.Name == c.Name && pods.IsSidecar(&s) }) {
			sidecars = max(sidecars, c.RestartCount)
		}
	}
	return containers, sidecars
}
