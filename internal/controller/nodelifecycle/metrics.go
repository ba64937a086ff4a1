package nodelifecycle

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-helpers/node/topology"
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

// zones counts the nodes of the controller that was made last: a process has one.
var zones zoneCollector

type zoneCollector struct {
	metrics.BaseStableCollector
	nodes atomic.Pointer[corelisters.NodeLister]
}

// DescribeWithStability implements metrics.StableCollector.
func (c *zoneCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- zoneSize
	ch <- zoneHealth
	ch <- unhealthy
}

// CollectWithStability implements metrics.StableCollector.
func (c *zoneCollector) CollectWithStability(ch chan<- metrics.Metric) {
	lister := c.nodes.Load()
	if lister == nil {
		return
	}
	all, err := (*lister).List(labels.Everything())
	if err != nil {
		return // an index in memory does not fail
	}
	size, bad := map[string]int{}, map[string]int{}
	for _, n := range all {
		zone := topology.GetZoneKey(n)
		size[zone]++
		if ready(n).Status != v1.ConditionTrue {
			bad[zone]++
		}
	}
	for zone, n := range size {
		ch <- metrics.NewLazyConstMetric(zoneSize, metrics.GaugeValue, float64(n), zone)
		ch <- metrics.NewLazyConstMetric(zoneHealth, metrics.GaugeValue, 100*float64(n-bad[zone])/float64(n), zone)
		ch <- metrics.NewLazyConstMetric(unhealthy, metrics.GaugeValue, float64(bad[zone]), zone)
	}
}
