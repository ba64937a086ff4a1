package proxy

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics under upstream's names.
var (
	syncDuration    = histogram("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds")
	fullDuration    = histogram("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs")
	partialDuration = histogram("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs")
	programming     = histogram("network_programming_duration_seconds", "In Cluster Network Programming Latency in seconds")
	lastSync        = gauge("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced")
	queued          = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued")
	failures        = counter("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures")
	serviceChanges  = counter("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes")
	endpointChanges = counter("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes")
	healthzAnswers  = answers("proxy_healthz_total", "Cumulative proxy healthz HTTP status")
	livezAnswers    = answers("proxy_livez_total", "Cumulative proxy livez HTTP status")
)

const subsystem = "kubeproxy"

func histogram(name, help string) *metrics.Histogram {
	return metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: name, Help: help, Buckets: metrics.ExponentialBuckets(0.001, 2, 15), StabilityLevel: metrics.ALPHA,
	})
}

func gauge(name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

func counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

func answers(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"code"})
}

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(syncDuration, fullDuration, partialDuration, programming, lastSync, queued,
		failures, serviceChanges, endpointChanges, healthzAnswers, livezAnswers)
})

// observe notes a successful write, of everything or of what changed, that began then, of changes of
// which the oldest came in at since.
func observe(began, since time.Time, whole bool) {
	now := time.Now()
	took := now.Sub(began).Seconds()
	syncDuration.Observe(took)
	if whole {
		fullDuration.Observe(took)
	} else {
		partialDuration.Observe(took)
	}
	lastSync.Set(float64(now.UnixNano()) / 1e9)
	if !since.IsZero() {
		programming.Observe(now.Sub(since).Seconds())
	}
}
