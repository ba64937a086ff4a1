package endpointslicemirroring

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "endpoint_slice_mirroring_controller"

// Metrics under upstream's names.
var (
	addedPerSync   = histogram("endpoints_added_per_sync", "Number of endpoints added on each Endpoints sync", 2)
	updatedPerSync = histogram("endpoints_updated_per_sync", "Number of endpoints updated on each Endpoints sync", 2)
	removedPerSync = histogram("endpoints_removed_per_sync", "Number of endpoints removed on each Endpoints sync", 2)
	skippedPerSync = histogram("addresses_skipped_per_sync",
		"Number of addresses skipped on each Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset", 2)
	syncDuration = histogram("endpoints_sync_duration", "Duration of syncEndpoints() in seconds", 0.001)
	desired      = gauge("endpoints_desired", "Number of endpoints desired")
	numSlices    = gauge("num_endpoint_slices", "Number of EndpointSlices")
	idealSlices  = gauge("desired_endpoint_slices", "Number of EndpointSlices that would exist with perfect endpoint allocation")
	changes      = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "changes", Help: "Number of EndpointSlice changes", StabilityLevel: metrics.ALPHA,
	}, []string{"operation"})
)

func histogram(name, help string, start float64) *metrics.Histogram {
	return metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA, Buckets: metrics.ExponentialBuckets(start, 2, 15),
	})
}

func gauge(name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(addedPerSync, updatedPerSync, removedPerSync, skippedPerSync, syncDuration, desired, numSlices, idealSlices, changes)
})

// totals sums up what the services have, for the gauges.
type totals struct {
	mu    sync.Mutex
	of    map[string]total // by the service's key
	total total
}

type total struct{ endpoints, slices int }

// set notes what a service has; a zero total forgets it.
func (t *totals) set(key string, now total) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.of[key]
	t.of[key] = now
	if now == (total{}) {
		delete(t.of, key)
	}
	t.total.endpoints += now.endpoints - was.endpoints
	t.total.slices += now.slices - was.slices
	desired.Set(float64(t.total.endpoints))
	numSlices.Set(float64(t.total.slices))
	idealSlices.Set(float64(t.total.slices)) // a group has one slice, always
}
