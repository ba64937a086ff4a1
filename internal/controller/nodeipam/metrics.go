package nodeipam

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics under upstream's names; the label is the cluster's network of pods.
var (
	used = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: "node_ipam_controller", Name: "cirdset_usage_cidrs", StabilityLevel: metrics.ALPHA,
		Help: "Which part of a network of pods is given to nodes, from 0 to 1.",
	}, []string{"clusterCIDR"})
	most = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: "node_ipam_controller", Name: "cirdset_max_cidrs", StabilityLevel: metrics.ALPHA,
		Help: "How many nodes a network of pods has ranges for.",
	}, []string{"clusterCIDR"})
)

func init() { legacyregistry.MustRegister(used, most) }

func report(networks []*network) {
	for _, n := range networks {
		used.WithLabelValues(n.prefix.String()).Set(n.usage())
		most.WithLabelValues(n.prefix.String()).Set(float64(n.count))
	}
}
