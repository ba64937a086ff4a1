package nodelifecycle

import (
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

func zoneGauge(name, help string) *metrics.Desc {
	return metrics.NewDesc("node_collector_"+name, help, []string{"zone"}, nil, metrics.ALPHA, "")
}

// Metrics under upstream's names. Those of zones are counted when somebody asks.
var (
	zoneSize   = zoneGauge("zone_size", "Nodes of a zone.")
	zoneHealth = zoneGauge("zone_health", "Nodes of a zone that are ready, in percent.")
	unhealthy  = zoneGauge("unhealthy_nodes_in_zone", "Nodes of a zone that are not ready.")

	evictions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "node_collector", Name: "evictions_total", StabilityLevel: metrics.STABLE,
		Help: "How often nodes became not ready or unreachable, so that pods are evicted from them.",
	}, []string{"zone"})
	lookDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "node_collector", Name: "update_node_health_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time of one look at a node, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 4, 8),
	})
)

func init() {
	legacyregistry.MustRegister(evictions, lookDuration)
	legacyregistry.CustomMustRegister(&zones)
}

// zones tells what the controller that was made last knows of zones: a process has one.
var zones zoneCollector

type zoneCollector struct {
	metrics.BaseStableCollector
	of atomic.Pointer[disruption]
}

// DescribeWithStability implements metrics.StableCollector.
func (c *zoneCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- zoneSize
	ch <- zoneHealth
	ch <- unhealthy
}

// CollectWithStability implements metrics.StableCollector.
func (c *zoneCollector) CollectWithStability(ch chan<- metrics.Metric) {
	d := c.of.Load()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, z := range d.zones {
		ch <- metrics.NewLazyConstMetric(zoneSize, metrics.GaugeValue, float64(z.nodes), name)
		ch <- metrics.NewLazyConstMetric(zoneHealth, metrics.GaugeValue, 100*float64(z.nodes-z.bad)/float64(z.nodes), name)
		ch <- metrics.NewLazyConstMetric(unhealthy, metrics.GaugeValue, float64(z.bad), name)
	}
}
