// Package prober runs the probes of containers: one loop per probe, which begins as soon as the
// initial delay is over, notes the result, and wakes the pod's worker when the result changed.
// podplan decides what follows from a result.
package prober

import (
	"context"
	"hash/fnv"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// Kinds of probes, as events and metrics name them.
const (
	Startup   = "Startup"
	Liveness  = "Liveness"
	Readiness = "Readiness"
)

// Results of probes, as metrics name them.
const (
	Successful = "successful"
	Failed     = "failed"
	Unknown    = "unknown"
)

// Recorder takes events.
type Recorder interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Meter counts and times probes for /metrics/probes. It must not call back.
type Meter interface {
	Probed(kind, result string, pod *v1.Pod, container string, took time.Duration)
	// Forget says that no probe of a pod will run any more.
	Forget(pod *v1.Pod)
}

// Manager runs probes. Workers call Sync, Results and Remove for their own pod.
type Manager struct {
	runner  Runner
	network *network
	events  Recorder
	wake    func(types.UID)
	meter   Meter
	loops   sync.WaitGroup

	mu      sync.Mutex
	pods    map[types.UID]map[string]*target
	metered map[types.UID]*v1.Pod
}

// target is a container instance whose probes run.
type target struct {
	pod    *v1.Pod
	spec   *v1.Container
	id     string
	ip     string
	since  time.Time
	cancel map[string]context.CancelFunc // by kind
	result podplan.Probe
}

// New returns a manager. wake is called after a result changed; meter may be nil.
func New(runner Runner, events Recorder, wake func(types.UID), meter Meter) *Manager {
	return &Manager{
		runner: runner, network: newNetwork(dial), events: events, wake: wake, meter: meter,
		pods: map[types.UID]map[string]*target{}, metered: map[types.UID]*v1.Pod{},
	}
}

// DialBy sets how probes connect. It must be called before the first of them runs.
func (m *Manager) DialBy(dial Dial) { m.network = newNetwork(dial) }

// Wait returns when all loops are gone; their contexts must have ended.
func (m *Manager) Wait() { m.loops.Wait() }

// Sync starts and stops probes so that exactly the wanted ones run. The loops end with the context.
func (m *Manager) Sync(ctx context.Context, pod *v1.Pod, ips []string, wanted []podplan.ProbeTarget) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[pod.UID]
	keep := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		spec := pods.FindContainer(pod, w.Name)
		if spec == nil || !probed(spec) || len(ips) == 0 {
			continue
		}
		keep[w.ID] = true
		t := have[w.ID]
		if t == nil {
			t = &target{pod: pod, spec: spec, id: w.ID, ip: ips[0], since: w.Since, cancel: map[string]context.CancelFunc{}}
			if spec.StartupProbe != nil && w.Started {
				t.result.Started = new(true)
			}
			if have == nil {
				have = map[string]*target{}
				m.pods[pod.UID] = have
			}
			have[w.ID] = t
		}
		m.startLocked(ctx, t, w.Ending)
	}
	for id, t := range have {
		if !keep[id] {
			t.stop()
			delete(have, id)
		}
	}
}

func probed(c *v1.Container) bool {
	return c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil
}

func (t *target) stop() {
	for kind, cancel := range t.cancel {
		cancel()
		delete(t.cancel, kind)
	}
}

// startLocked starts the loops that should run by now: the startup probe alone at first, and the
// others once it has passed. Only readiness continues for an ending pod.
func (m *Manager) startLocked(ctx context.Context, t *target, ending bool) {
	started := t.spec.StartupProbe == nil || t.result.Started != nil && *t.result.Started
	for kind, probe := range map[string]*v1.Probe{
		Startup: t.spec.StartupProbe, Liveness: t.spec.LivenessProbe, Readiness: t.spec.ReadinessProbe,
	} {
		on := probe != nil && (kind == Startup) != started && (!ending || kind == Readiness)
		cancel, running := t.cancel[kind]
		switch {
		case on && !running:
			loopCtx, cancel := context.WithCancel(ctx)
			t.cancel[kind] = cancel
			m.loops.Go(func() { m.loop(loopCtx, t, kind, probe) })
		case !on && running:
			cancel()
			delete(t.cancel, kind)
		}
	}
}

// Results returns the newest results of a pod's containers by container ID.
func (m *Manager) Results(uid types.UID) map[string]podplan.Probe {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[uid]
	if len(have) == 0 {
		return nil
	}
	out := make(map[string]podplan.Probe, len(have))
	for id, t := range maps.All(have) {
		out[id] = t.result
	}
	return out
}

// Remove stops all probes of a pod.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.pods[uid] {
		t.stop()
	}
	delete(m.pods, uid)
	if pod, ok := m.metered[uid]; ok {
		m.meter.Forget(pod)
		delete(m.metered, uid)
	}
}

// measure counts a probe that has run, unless its pod has been removed meanwhile.
func (m *Manager) measure(ctx context.Context, t *target, kind, result string, took time.Duration) {
	if m.meter == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	m.metered[t.pod.UID] = t.pod
	m.meter.Probed(kind, result, t.pod, t.spec.Name, took)
}

// loop probes until the context ends or the probe has given its last answer.
func (m *Manager) loop(ctx context.Context, t *target, kind string, p *v1.Probe) {
	period := seconds(p.PeriodSeconds, 10)
	timer := time.NewTimer(firstDelay(t, kind, seconds(p.InitialDelaySeconds, 0), period, time.Now()))
	defer timer.Stop()
	tally := tally{success: max(int(p.SuccessThreshold), 1), failure: max(int(p.FailureThreshold), 1)}
	if p.FailureThreshold == 0 {
		tally.failure = 3
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(nextDelay(period, time.Now()))
		began := time.Now()
		answer := m.once(ctx, t, kind, p)
		if ctx.Err() != nil {
			return
		}
		m.measure(ctx, t, kind, answer.result(), time.Since(began))
		m.tell(t, kind, answer)
		if settled, ok := tally.add(answer); settled && m.note(t, kind, p, ok, answer.text) {
			return
		}
	}
}

// firstDelay returns how long to wait for the first probe. After a restart of the kubelet,
// containers that have been running for a long time are spread over a part of the period, by their
// IDs, rather than probed all at once.
func firstDelay(t *target, kind string, initial, period time.Duration, now time.Time) time.Duration {
	if t.since.IsZero() {
		return initial
	}
	due := t.since.Add(initial).Sub(now)
	if due >= -period {
		return min(max(due, 0), initial) // the clock may have been set back since
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.id + kind))
	return time.Duration(h.Sum64() % uint64(min(period, time.Second)+1))
}

// beat is the grid on which probes are repeated.
const beat = 100 * time.Millisecond

// nextDelay returns the period, extended to end on a beat. Probes that are due at nearly the same
// time are then made in one wakeup of the process, at half the cost of separate ones. A probe is
// late once, by less than a beat, and regular from then on.
func nextDelay(period time.Duration, now time.Time) time.Duration {
	due := now.Add(period + beat - 1)
	return due.Truncate(beat).Sub(now)
}

func seconds(n int32, otherwise int32) time.Duration {
	if n <= 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

// tally counts equal answers in a row.
type tally struct {
	success, failure int
	last             verdict
	count            int
}

// add reports whether there are enough equal answers in a row to settle on a result.
func (t *tally) add(a answer) (settled, ok bool) {
	if a.verdict == unknown {
		return false, false
	}
	if a.verdict == warning {
		a.verdict = success
	}
	if a.verdict != t.last {
		t.last, t.count = a.verdict, 0
	}
	t.count++
	if a.verdict == failure {
		return t.count >= t.failure, false
	}
	return t.count >= t.success, true
}

// note keeps a settled result, and wakes the worker if it is a new one. It reports whether the loop
// is over: a startup probe has passed, or a probe has failed for good.
func (m *Manager) note(t *target, kind string, p *v1.Probe, ok bool, text string) bool {
	m.mu.Lock()
	r := &t.result
	changed, over := false, false
	switch {
	case kind == Readiness:
		changed = r.Ready == nil || *r.Ready != ok
		r.Ready = &ok
	case kind == Startup && ok:
		r.Started, changed, over = &ok, true, true
	case !ok:
		changed, over = r.Failed == "", true
		r.Failed, r.FailedKind, r.Grace = text, lower(kind), p.TerminationGracePeriodSeconds
		if r.Failed == "" {
			r.Failed = "failed"
		}
	}
	m.mu.Unlock()
	if changed {
		m.wake(t.pod.UID)
	}
	return over
}

func lower(kind string) string {
	switch kind {
	case Startup:
		return "startup"
	case Liveness:
		return "liveness"
	default:
		return "readiness"
	}
}
