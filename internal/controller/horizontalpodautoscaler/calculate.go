package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/api/pods"
)

// sample is what a pod uses: thousandths of a unit, on average over the window before at.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// tolerance is by how much, as a share, a metric may miss its target before the size changes.
type tolerance struct{ up, down float64 }

func (t tolerance) holds(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// Options are the settings of the controller, upstream's --horizontal-pod-autoscaler-….
type Options struct {
	Period         time.Duration // sync-period
	Window         time.Duration // downscale-stabilization
	Tolerance      float64
	CPUInitial     time.Duration // cpu-initialization-period
	ReadinessDelay time.Duration // initial-readiness-delay
}

// Defaults are upstream's.
var Defaults = Options{15 * time.Second, 5 * time.Minute, 0.1, 5 * time.Minute, 30 * time.Second}

// grouped are the names of pods by what their metrics are worth.
type grouped struct {
	ready            int
	unready, missing []string
	ignored          []string
}

// group sorts the pods. A starting pod uses more CPU than it will: what it used before it was ready
// does not count.
func group(o *Options, list []*v1.Pod, samples map[string]sample, cpu bool, now time.Time) grouped {
	var g grouped
	for _, p := range list {
		s, measured := samples[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == v1.PodFailed:
			g.ignored = append(g.ignored, p.Name)
		case p.Status.Phase == v1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !measured:
			g.missing = append(g.missing, p.Name)
		case cpu && !settled(o, p, s, now):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

// settled tells whether a sample of CPU shows what the pod does at work.
func settled(o *Options, p *v1.Pod, s sample, now time.Time) bool {
	c := pods.FindCondition(&p.Status, v1.PodReady)
	if c == nil || p.Status.StartTime == nil {
		return false
	}
	start, changed := p.Status.StartTime.Time, c.LastTransitionTime.Time
	if start.Add(o.CPUInitial).After(now) {
		return c.Status != v1.ConditionFalse && !s.at.Before(changed.Add(s.window))
	}
	// Later only a pod that has never been ready is left out.
	return c.Status != v1.ConditionFalse || !start.Add(o.ReadinessDelay).After(changed)
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")
	errUnknown   = errors.New("no metrics returned matched known pods")
)

// perPod is a metric that each pod has.
type perPod struct {
	*Options
	pods      []*v1.Pod
	samples   map[string]sample
	cpu       bool
	current   int32
	tolerance tolerance
	now       time.Time
	// ratio returns the use in relation to the target; full what a pod uses that uses its share.
	ratio func(samples map[string]sample) (float64, error)
	full  func(pod string) int64
}

// replicas returns the number of pods with which they would meet the target on average. Pods of which
// nothing is known are taken to be idle if the number would grow, and busy if it would shrink: so that
// ignorance alone changes nothing. before is called with the samples that count.
func (m *perPod) replicas(before func(samples map[string]sample)) (int32, error) {
	if len(m.pods) == 0 {
		return 0, errNoPods
	}
	g, samples := group(m.Options, m.pods, m.samples, m.cpu, m.now), maps.Clone(m.samples)
	for _, names := range [][]string{g.ignored, g.unready} {
		for _, name := range names {
			delete(samples, name)
		}
	}
	if len(samples) == 0 {
		return 0, errNoMetrics
	}
	ratio, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	before(samples)
	starting := len(g.unready) > 0 && ratio > 1
	if !starting && len(g.missing) == 0 {
		if m.tolerance.holds(ratio) {
			return m.current, nil
		}
		return ceil(ratio * float64(g.ready)), nil
	}
	return m.withUnknown(samples, g, ratio)
}

func (m *perPod) withUnknown(samples map[string]sample, g grouped, ratio float64) (int32, error) {
	for _, name := range g.missing {
		switch {
		case ratio < 1:
			samples[name] = sample{value: m.full(name)}
		case ratio > 1:
			samples[name] = sample{}
		}
	}
	if ratio > 1 {
		for _, name := range g.unready {
			samples[name] = sample{}
		}
	}
	again, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	if m.tolerance.holds(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return m.current, nil
	}
	n := ceil(again * float64(len(samples)))
	if again < 1 && n > m.current || again > 1 && n < m.current {
		return m.current, nil
	}
	return n, nil
}

// average returns the mean of the samples.
func average(samples map[string]sample) int64 {
	var total int64
	for _, s := range samples {
		total += s.value
	}
	return total / int64(len(samples))
}

// used is how much of their requests pods use: in percent, and on average.
type used struct {
	percent int32
	average int64
}

func utilization(samples map[string]sample, requests map[string]int64) (used, error) {
	var total, requested, n int64
	for name, s := range samples {
		if request, ok := requests[name]; ok {
			total, requested, n = total+s.value, requested+request, n+1
		}
	}
	if requested == 0 {
		return used{}, errUnknown
	}
	return used{clamp(total * 100 / requested), total / n}, nil
}

// requestsOf returns what each pod requests of a resource, in thousandths. If container is "", all
// containers count, or what the pod requests as a whole.
func requestsOf(list []*v1.Pod, container string, name v1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(list))
	for _, p := range list {
		n, err := requestOf(p, container, name)
		if err != nil {
			return nil, err
		}
		out[p.Name] = n
	}
	return out, nil
}

func requestOf(p *v1.Pod, container string, name v1.ResourceName) (int64, error) {
	if container == "" && resourcehelper.IsPodLevelRequestsSet(p) {
		q, ok := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[name]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, p.Name)
		}
		return q.MilliValue(), nil
	}
	var total int64
	found := container == ""
	count := func(c *v1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		q, ok := c.Resources.Requests[name]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, p.Name)
		}
		found = true
		total += q.MilliValue()
		return nil
	}
	for i := range p.Spec.Containers {
		if err := count(&p.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !pods.IsSidecar(c) {
			continue
		}
		if err := count(c); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return total, nil
}

// atWork counts the pods that are ready.
func atWork(list []*v1.Pod) (int, error) {
	if len(list) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	n := 0
	for _, p := range list {
		c := pods.FindCondition(&p.Status, v1.PodReady)
		if p.Status.Phase == v1.PodRunning && c != nil && c.Status == v1.ConditionTrue {
			n++
		}
	}
	return n, nil
}

// ceil rounds up to a number that a size can be.
func ceil(f float64) int32 {
	switch f = math.Ceil(f); {
	case math.IsNaN(f) || f <= 0:
		return 0
	case f >= math.MaxInt32:
		return math.MaxInt32
	}
	return int32(f)
}

// total adds up values, and stops at the greatest number.
func total(values []int64) (out int64) {
	for _, v := range values {
		if v > 0 && out > math.MaxInt64-v {
			return math.MaxInt64
		}
		out += v
	}
	return out
}
