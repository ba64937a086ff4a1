package metrics

import (
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	// fresh is how long a sample answers requests without another one.
	fresh = 10 * time.Second
	// longest is the longest window over which CPU is measured: an older sample is forgotten.
	longest = 2 * time.Minute
	// gap is what lies between two samples if there was none before. A shorter window says little,
	// since CPU time comes in slices.
	gap = time.Second
	// same is how far two times may be apart that still mean one measurement: some kubelets measure by
	// a clock of their own.
	same = gap / 2
)

// pair is two points of one node or container. CPU is the rate from one to the other. Without a first
// one, whose time is then zero, there is no rate.
type pair struct{ first, last point }

// follow returns the pair after another point. A container that has started since then had used
// nothing when it started.
func (p pair) follow(next point) pair {
	age, passed := next.at.Sub(next.started), next.at.Sub(p.last.at)
	switch {
	case next.started.After(p.last.at) && age >= gap && age <= longest:
		return pair{point{at: next.started}, next}
	case p.last.at.IsZero() || next.started.After(p.last.at) || next.cpu < p.last.cpu:
		return pair{last: next} // it began anew
	case passed < 0 || passed > 2*longest:
		return pair{last: next} // its clock was set
	case passed < same && next.at.Sub(p.first.at) > longest:
		return pair{last: next}
	case passed < same:
		return pair{p.first, next}
	}
	return pair{p.last, next}
}

// usage returns what was used, and when; not if there is no rate.
func (p pair) usage() (u usage, ok bool) {
	if p.first.at.IsZero() {
		return usage{}, false
	}
	window := p.last.at.Sub(p.first.at)
	cores := (p.last.cpu - p.first.cpu) / window.Seconds()
	cpu := *resource.NewScaledQuantity(int64(math.Round(min(cores*1e9, most))), resource.Nano)
	cpu.Format = resource.DecimalSI
	memory := *resource.NewQuantity(int64(p.last.memory), resource.BinarySI)
	return usage{corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}, p.last.at, window}, true
}

// usage is what was used at the end of a window.
type usage struct {
	resources corev1.ResourceList
	at        time.Time
	window    time.Duration
}

// history is what is known about a node. It is a value: what add returns shares nothing with it that
// would change.
type history struct {
	taken   time.Time // when the last sample was taken, by our clock
	samples int       // how many followed each other
	// silent is when a kubelet did not answer in time, after the last sample.
	silent time.Time
	node   pair
	pods   map[types.NamespacedName]map[string]pair
}

// add returns the history after another sample, which was taken now.
func (h history) add(s sample, now time.Time) history {
	if h.samples > 0 && now.Sub(h.taken) > longest {
		h = history{}
	}
	out := history{taken: now, samples: h.samples + 1, pods: make(map[types.NamespacedName]map[string]pair, len(s.pods))}
	if s.node != nil {
		out.node = h.node.follow(*s.node)
	}
	for pod, containers := range s.pods {
		pairs := make(map[string]pair, len(containers))
		for name, p := range containers {
			pairs[name] = h.pods[pod][name].follow(p)
		}
		out.pods[pod] = pairs
	}
	return out
}

// missed returns the history after a kubelet did not answer in time.
func (h history) missed(now time.Time) history {
	h.silent = now
	return h
}

// step is what a request does next.
type step int

const (
	answer step = iota
	ask
	wait
)

// next returns what a request does next and, if it is to wait, how long.
func (h history) next(now time.Time) (step, time.Duration) {
	age := now.Sub(h.taken)
	switch {
	case !h.silent.IsZero() && now.Sub(h.silent) < fresh:
		return answer, 0
	case h.samples > 1 && age < fresh:
		return answer, 0
	case h.samples == 1 && age < gap:
		return wait, gap - age
	}
	return ask, 0
}

// current reports whether the last sample still answers.
func (h history) current(now time.Time) bool { return h.samples > 0 && now.Sub(h.taken) < fresh }

// nodeMetrics returns what the node uses, if that is known.
func (h history) nodeMetrics(node *corev1.Node, now time.Time) (out metricsv1beta1.NodeMetrics, ok bool) {
	u, ok := h.node.usage()
	if !ok {
		return out, false
	}
	return metricsv1beta1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, CreationTimestamp: metav1.NewTime(now)},
		Timestamp:  metav1.NewTime(u.at),
		Window:     metav1.Duration{Duration: u.window},
		Usage:      u.resources,
	}, true
}

// podMetrics returns what the containers of a pod use, if that is known of all of them. The time is
// that of the container that was measured first.
func (h history) podMetrics(pod *corev1.Pod, now time.Time) (out metricsv1beta1.PodMetrics, ok bool) {
	pairs := h.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	if len(pairs) == 0 || pod.Status.StartTime == nil {
		return out, false
	}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, CreationTimestamp: metav1.NewTime(now),
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		u, ok := pairs[name].usage()
		// What was measured before the pod began is of another one of its name. Both are times of the node.
		if !ok || u.at.Before(pod.Status.StartTime.Time) {
			return out, false
		}
		if out.Timestamp.IsZero() || u.at.Before(out.Timestamp.Time) {
			out.Timestamp, out.Window = metav1.NewTime(u.at), metav1.Duration{Duration: u.window}
		}
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: u.resources})
	}
	return out, true
}
