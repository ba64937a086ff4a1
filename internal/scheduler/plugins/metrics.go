package plugins

import (
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	preemptionAttempts = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "preemption_attempts_total", StabilityLevel: metrics.STABLE,
		Help: "Number of attempts to make room for a pod by preemption.",
	})
	preemptionVictims = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "preemption_victims", StabilityLevel: metrics.STABLE,
		Help:    "Number of pods that a preemption ends.",
		Buckets: metrics.ExponentialBuckets(1, 2, 7),
	})
	preemptionRuns = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "preemption_goroutines_execution_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of preemptions carried out in the background, by the result.",
	}, []string{"result"})
	preemptionDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "preemption_goroutines_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time in which a preemption was carried out in the background, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.01, 2, 20),
	}, []string{"result"})
)

func init() {
	legacyregistry.MustRegister(preemptionAttempts, preemptionVictims, preemptionRuns, preemptionDuration)
}

// observePreemption notes how a preemption in the background ended.
func observePreemption(err error, began time.Time) {
	result := "success"
	if err != nil {
		result = "error"
	}
	preemptionRuns.WithLabelValues(result).Inc()
	preemptionDuration.WithLabelValues(result).Observe(time.Since(began).Seconds())
}
