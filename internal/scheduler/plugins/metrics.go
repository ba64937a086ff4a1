package plugins

import (
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
)

func init() { legacyregistry.MustRegister(preemptionAttempts, preemptionVictims) }
