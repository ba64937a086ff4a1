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
	pointDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "framework_extension_point_duration_seconds", StabilityLevel: metrics.STABLE,
		Help:    "Time of all plugins of an extension point, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.0001, 2, 12),
	}, []string{"extension_point", "status", "profile"})
	permitWait = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "permit_wait_duration_seconds", StabilityLevel: metrics.BETA,
		Help:    "Time for which pods with a node waited until plugins let them be bound, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"result"})
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
	legacyregistry.MustRegister(podGroupAttempts, podGroupDuration, podGroupAlgorithm)
	legacyregistry.MustRegister(attempts, attemptDuration, sliDuration, algorithmDuration, podAttempts, pointDuration, permitWait)
	legacyregistry.CustomMustRegister(&census{})
}

// observePoint notes how long an extension point took.
func observePoint(point, profile string, result fwk.Code, d time.Duration) {
	pointDuration.WithLabelValues(point, result.String(), profile).Observe(d.Seconds())
}

// timed runs an extension point, and notes how long it took.
func (a *attempt) timed(point string, run func() *fwk.Status) *fwk.Status {
	start := time.Now()
	st := run()
	observePoint(point, a.profile.Name, st.Code(), time.Since(start))
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
	goroutines = metrics.NewDesc("scheduler_goroutines", "Number of goroutines by their work.",
		[]string{"operation"}, nil, metrics.BETA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (*census) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{pendingPods, unschedulablePods, cacheSize, goroutines} {
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
	gauge(goroutines, int(s.binding.Load()), "binding")
}

func observe(result, profile string, d time.Duration) {
	attempts.WithLabelValues(result, profile).Inc()
	attemptDuration.WithLabelValues(result, profile).Observe(d.Seconds())
}

func observeSLI(info *framework.QueuedPodInfo, now time.Time) {
	podAttempts.Observe(float64(info.Attempts))
	if info.InitialAttemptTimestamp != nil {
		sliDuration.WithLabelValues(strconv.Itoa(min(info.Attempts, 16))).Observe(now.Sub(*info.InitialAttemptTimestamp).Seconds())
	}
}
