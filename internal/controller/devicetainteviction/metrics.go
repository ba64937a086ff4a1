package devicetainteviction

import (
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics under upstream's names.
var (
	deletions = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "device_taint_eviction_controller", Name: "pod_deletions_total", StabilityLevel: metrics.ALPHA,
		Help: "Pods that were deleted because of the taint of a device.",
	})
	deletionLatency = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "device_taint_eviction_controller", Name: "pod_deletion_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time from when the taint of a device was not tolerated any more until the pod was deleted, in seconds.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
	})
)

func init() { legacyregistry.MustRegister(deletions, deletionLatency) }

// deleted counts a pod that was to go at a time; a taint without one has always been there.
func deleted(at time.Time) {
	deletions.Inc()
	if !at.IsZero() {
		deletionLatency.Observe(time.Since(at).Seconds())
	}
}
