package devices

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	bindingAllocations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "dra_bindingconditions_allocations_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of scheduling attempts that waited for devices to get ready, by driver.",
	}, []string{"profile", "driver", "status"})
	bindingWait = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "scheduler", Name: "dra_bindingconditions_wait_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "How long PreBind waited for devices to get ready.",
		Buckets: metrics.ExponentialBuckets(0.1, 2, 14),
	}, []string{"profile", "driver", "status"})
	creations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "resourceclaim_creates_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of ResourceClaims made, or not, for extended resources of pods.",
	}, []string{"status"})
)

func init() { legacyregistry.MustRegister(bindingAllocations, bindingWait, creations) }

func countCreation(err error) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	creations.WithLabelValues(status).Inc()
}

// observe counts how a wait for devices ended.
func observe(profile string, drivers sets.Set[string], err error, took time.Duration) {
	status := "error"
	switch {
	case err == nil:
		status = "success"
	case errors.Is(err, errTimeout):
		status = "timeout"
	case errors.Is(err, errFailed):
		status = "failure"
	}
	for driver := range drivers {
		bindingAllocations.WithLabelValues(profile, driver, status).Inc()
		bindingWait.WithLabelValues(profile, driver, status).Observe(took.Seconds())
	}
}
