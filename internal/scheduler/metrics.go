package scheduler

import (
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Results of an attempt, as upstream labels them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "schedule_attempts_total", StabilityLevel: metrics.STABLE,
		Help: "Number of attempts to schedule pods, by the result.",
	}, []string{"result", "profile"})
	attemptDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "scheduling_attempt_duration_seconds", StabilityLevel: metrics.STABLE,
		Help:    "Time of one attempt in seconds: decision and binding.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"result", "profile"})
	sliDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "pod_scheduling_sli_duration_seconds", StabilityLevel: metrics.BETA,
		Help:    "Time from the first attempt at a pod until it is bound, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.01, 2, 20),
	}, []string{"attempts"})
)

var (
	algorithmDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "scheduling_algorithm_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time in which a node was found for a pod, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	})
	podAttempts = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "pod_scheduling_attempts", StabilityLevel: metrics.STABLE,
		Help:    "Number of attempts that it took to schedule a pod.",
		Buckets: metrics.ExponentialBuckets(1, 2, 5),
	})
	permitWait = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "permit_wait_duration_seconds", StabilityLevel: metrics.BETA,
		Help:    "Time for which pods with a node waited until plugins let them be bound, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"result"})
)

var (
	eventHandling = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "event_handling_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time in which an event of the cluster was taken in, with its effects on pods that wait, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.0001, 2, 12),
	}, []string{"event"})
	hintDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "queueing_hint_execution_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time in which a plugin said what an event means for a pod that it rejected, in seconds; of every tenth call.",
		Buckets: metrics.ExponentialBuckets(0.00001, 1.5, 20),
	}, []string{"plugin", "event", "hint"})
	afterFlush = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "pod_scheduled_after_flush_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of pods that were scheduled when only time had brought them back to the queue: a queueing hint may be wrong.",
	})
)

var (
	podGroupAttempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "podgroup_schedule_attempts_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of attempts to schedule pod groups, by the result.",
	}, []string{"result", "profile"})
	podGroupDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "podgroup_scheduling_attempt_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time of one attempt at a pod group in seconds, until its pods' bindings begin.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"result", "profile"})
	podGroupAlgorithm = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "podgroup_scheduling_algorithm_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time in which nodes were looked for, for all pods of a group, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	})
)

func init() {
	legacyregistry.MustRegister(eventHandling, hintDuration, afterFlush)
	legacyregistry.MustRegister(podGroupAttempts, podGroupDuration, podGroupAlgorithm)
	legacyregistry.MustRegister(attempts, attemptDuration, sliDuration, algorithmDuration, podAttempts, permitWait)
	legacyregistry.CustomMustRegister(&census{})
}

// timed runs an extension point, and notes how long it took.
func (a *attempt) timed(point string, run func() *fwk.Status) *fwk.Status {
	start := time.Now()
	st := run()
	framework.ObservePoint(point, a.profile.Name, st.Code(), time.Since(start))
	return st
}

// running is the scheduler of this process, for what is counted when somebody asks.
var running atomic.Pointer[Scheduler]

// census counts what is in the queue and in the cache.
type census struct{ metrics.BaseStableCollector }

var (
	pendingPods = metrics.NewDesc("scheduler_pending_pods",
		"Number of pods without a node, by queue: active ones are next, those in backoff and unschedulable have failed, gated ones were not tried.",
		[]string{"queue"}, nil, metrics.STABLE, "")
	unschedulablePods = metrics.NewDesc("scheduler_unschedulable_pods",
		"Number of unschedulable pods, by the plugin that rejected them. A pod counts for each of these plugins.",
		[]string{"plugin", "profile"}, nil, metrics.BETA, "")
	cacheSize = metrics.NewDesc("scheduler_cache_size", "Number of nodes, pods and assumed pods that the scheduler knows.",
		[]string{"type"}, nil, metrics.ALPHA, "")
	inflightEvents = metrics.NewDesc("scheduler_inflight_events",
		"Number of events that are kept for pods in flight; PodPopped is the number of these.",
		[]string{"event"}, nil, metrics.ALPHA, "")
	goroutines = metrics.NewDesc("scheduler_goroutines", "Number of goroutines by their work.",
		[]string{"operation"}, nil, metrics.BETA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (*census) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{pendingPods, unschedulablePods, cacheSize, inflightEvents, goroutines} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (*census) CollectWithStability(ch chan<- metrics.Metric) {
	s := running.Load()
	if s == nil {
		return
	}
	gauge := func(d *metrics.Desc, n int, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, float64(n), labels...)
	}
	active, backoff, unschedulable, gated := s.queue.Lengths()
	for queue, n := range map[string]int{"active": active, "backoff": backoff, "unschedulable": unschedulable, "gated": gated} {
		gauge(pendingPods, n, queue)
	}
	for by, n := range s.queue.Rejected() {
		gauge(unschedulablePods, n, by.Plugin, by.Profile)
	}
	nodes, pods, assumed := s.cache.Sizes()
	for of, n := range map[string]int{"nodes": nodes, "pods": pods, "assumed_pods": assumed} {
		gauge(cacheSize, n, of)
	}
	events, flying := s.queue.InFlight()
	for label, n := range events {
		gauge(inflightEvents, n, label)
	}
	gauge(inflightEvents, flying, "PodPopped")
	gauge(goroutines, int(s.binding.Load()), "binding")
}

func observe(result, profile string, d time.Duration) {
	attempts.WithLabelValues(result, profile).Inc()
	attemptDuration.WithLabelValues(result, profile).Observe(d.Seconds())
}

// handled notes how long an event took that began to be handled at a time.
func handled(event fwk.ClusterEvent, began time.Time) {
	eventHandling.WithLabelValues(event.Label()).Observe(time.Since(began).Seconds())
}

// observeHint notes how long a plugin took for what it said, if that is timed.
func observeHint(plugin string, event fwk.ClusterEvent, hint fwk.QueueingHint, err error, began time.Time) {
	if began.IsZero() {
		return
	}
	label := "QueueSkip"
	switch {
	case err != nil:
		label = "Error"
	case hint == fwk.Queue:
		label = "Queue"
	}
	hintDuration.WithLabelValues(plugin, event.Label(), label).Observe(time.Since(began).Seconds())
}

func observeSLI(info *framework.QueuedPodInfo, now time.Time) {
	if info.Flushed {
		afterFlush.Inc()
	}
	podAttempts.Observe(float64(info.Attempts))
	if info.InitialAttemptTimestamp != nil {
		sliDuration.WithLabelValues(strconv.Itoa(min(info.Attempts, 16))).Observe(now.Sub(*info.InitialAttemptTimestamp).Seconds())
	}
}
