package scheduler

import (
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

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

func init() { legacyregistry.MustRegister(attempts, attemptDuration, sliDuration) }

func observe(result, profile string, d time.Duration) {
	attempts.WithLabelValues(result, profile).Inc()
	attemptDuration.WithLabelValues(result, profile).Observe(d.Seconds())
}

func observeSLI(info *framework.QueuedPodInfo, now time.Time) {
	if info.InitialAttemptTimestamp != nil {
		sliDuration.WithLabelValues(strconv.Itoa(min(info.Attempts, 16))).Observe(now.Sub(*info.InitialAttemptTimestamp).Seconds())
	}
}
