package proxy

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics under upstream's names.
var (
	syncDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_duration_seconds", Help: "SyncProxyRules latency in seconds",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15), StabilityLevel: metrics.ALPHA,
	})
	programming = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "kubeproxy", Name: "network_programming_duration_seconds", Help: "In Cluster Network Programming Latency in seconds",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15), StabilityLevel: metrics.ALPHA,
	})
	lastSync = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_last_timestamp_seconds", Help: "The last time proxy rules were successfully synced",
		StabilityLevel: metrics.ALPHA,
	})
	failures = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_nftables_sync_failures_total", Help: "Cumulative proxy nftables sync failures",
		StabilityLevel: metrics.ALPHA,
	})
)

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(syncDuration, programming, lastSync, failures) })

// observe notes a successful write that began then, of changes of which the oldest came in at since.
func observe(began, since time.Time) {
	now := time.Now()
	syncDuration.Observe(now.Sub(began).Seconds())
	lastSync.Set(float64(now.UnixNano()) / 1e9)
	if !since.IsZero() {
		programming.Observe(now.Sub(since).Seconds())
	}
}
