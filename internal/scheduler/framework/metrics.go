package framework

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"
)

var (
	pointDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "framework_extension_point_duration_seconds", StabilityLevel: metrics.STABLE,
		Help:    "Time of all plugins of an extension point, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.0001, 2, 12),
	}, []string{"extension_point", "status", "profile"})
	pluginDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "plugin_execution_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time of one plugin at an extension point, in seconds; of every tenth call.",
		Buckets: metrics.ExponentialBuckets(0.00001, 1.5, 20),
	}, []string{"plugin", "extension_point", "status"})
	pluginEvaluations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "plugin_evaluation_total", StabilityLevel: metrics.BETA,
		Help: "Number of times that a plugin had a say, at PreFilter, Filter, PreScore and Score.",
	}, []string{"plugin", "extension_point", "profile"})
)

func init() { legacyregistry.MustRegister(pointDuration, pluginDuration, pluginEvaluations) }

// ObservePoint notes how long an extension point took.
func ObservePoint(point, profile string, result fwk.Code, d time.Duration) {
	pointDuration.WithLabelValues(point, result.String(), profile).Observe(d.Seconds())
}

// timedCalls is of how many calls one is timed. Upstream times all calls of every tenth cycle, which makes
// a search among thousands of nodes slow then.
const timedCalls = 10

// Sample decides which calls are timed: the first one, and of those that follow every tenth.
type Sample struct{ calls atomic.Uint32 }

// Begin returns when a call begins; zero if it is not timed.
func (s *Sample) Begin() time.Time {
	if s.calls.Add(1)%timedCalls == 1 {
		return time.Now()
	}
	return time.Time{}
}

// meter measures a plugin at one extension point.
type meter struct {
	plugin, point string
	evaluations   metrics.CounterMetric // nil where they are not counted
	Sample
	// took has the histograms by the status that the plugin returned, each from the first one on.
	took [fwk.Pending + 1]atomic.Pointer[metrics.ObserverMetric]
}

func newMeter(plugin, point string) *meter { return &meter{plugin: plugin, point: point} }

// counting returns a meter that counts evaluations, too.
func counting(plugin, point, profile string) *meter {
	m := newMeter(plugin, point)
	m.evaluations = pluginEvaluations.WithLabelValues(plugin, point, profile)
	return m
}

// end notes what a call came to.
func (m *meter) end(began time.Time, st *fwk.Status) {
	if m.evaluations != nil && !st.IsSkip() {
		m.evaluations.Inc()
	}
	if !began.IsZero() {
		m.observe(began, st)
	}
}

func (m *meter) observe(began time.Time, st *fwk.Status) {
	code := st.Code()
	if code < 0 || int(code) >= len(m.took) {
		return
	}
	took := m.took[code].Load()
	if took == nil {
		o := pluginDuration.WithLabelValues(m.plugin, m.point, code.String())
		took = &o
		m.took[code].Store(took)
	}
	(*took).Observe(time.Since(began).Seconds())
}

// timedNodes is at how many nodes of a cycle plugins are timed at most: two looks at the clock cost as much as many a
// filter.
const timedNodes = 50

// sampling decides at which nodes plugins are timed: at every so many, beginning with another one in each cycle.
type sampling struct{ cycle, every int }

// timed reports whether the plugins that look at a node are timed. It takes no count of calls, which would cost more than
// some of them.
func timed(state fwk.CycleState, node fwk.NodeInfo) bool {
	c, okState := state.(*CycleState)
	n, okNode := node.(*NodeInfo)
	return okState && okNode && c.sampling.every > 0 && (n.place+c.sampling.cycle)%c.sampling.every == 0
}

// CountFilters notes which filters have had a say in a search: all of them on nodes that passed, and on others those up
// to the one that rejected. What is remembered of a node counts.
func (p *Profile) CountFilters(state *CycleState, passed int, rejected []*fwk.Status) {
	last, at := "", -1
	by := make([]int, len(state.filters))
	for _, st := range rejected {
		if st == nil {
			continue
		}
		if st.Plugin() != last || at < 0 { // most are rejected by few plugins
			last = st.Plugin()
			at = slices.IndexFunc(state.filters, func(f filterer) bool { return f.plugin == last })
		}
		if at >= 0 {
			by[at]++
		}
	}
	say := passed
	for i, n := range slices.Backward(by) {
		if say += n; say > 0 {
			state.filters[i].evaluations.Add(float64(say))
		}
	}
}
