package cpus

import (
	"strconv"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/kubelet/podplan"
)

// usage tells who has CPUs, when somebody asks.
type usage struct {
	metrics.BaseStableCollector
	of atomic.Pointer[source]
}

type source struct {
	m    *Manager
	held func() []podplan.CPUs
}

var (
	sharedDesc = metrics.NewDesc("kubelet_cpu_manager_shared_pool_size_millicores",
		"CPUs that may still be given to one container, in thousandths.", nil, nil, metrics.ALPHA, "")
	ownDesc = metrics.NewDesc("kubelet_cpu_manager_exclusive_cpu_allocation_count",
		"Number of CPUs that containers have for themselves.", nil, nil, metrics.ALPHA, "")
	nodeDesc = metrics.NewDesc("kubelet_cpu_manager_allocation_per_numa",
		"Number of CPUs that containers have for themselves, by NUMA node.", []string{"numa_node"}, nil, metrics.ALPHA, "")
	told = &usage{}
)

func init() { legacyregistry.CustomMustRegister(told) }

// Report has metrics tell of the CPUs that containers have by a Manager's decisions; none for nil.
func Report(m *Manager, held func() []podplan.CPUs) { told.of.Store(&source{m, held}) }

// DescribeWithStability implements metrics.StableCollector.
func (*usage) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{sharedDesc, ownDesc, nodeDesc} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (u *usage) CollectWithStability(ch chan<- metrics.Metric) {
	from := u.of.Load()
	if from == nil || from.m == nil {
		return
	}
	own := Union(from.held())
	ch <- metrics.NewLazyConstMetric(sharedDesc, metrics.GaugeValue, float64(1000*from.m.assignable.Difference(own).Size()))
	ch <- metrics.NewLazyConstMetric(ownDesc, metrics.GaugeValue, float64(own.Size()))
	taken := from.m.topology.Only(own).sizes(numaOf)
	for _, id := range from.m.nodes.IDs() {
		ch <- metrics.NewLazyConstMetric(nodeDesc, metrics.GaugeValue, float64(taken[id]), strconv.Itoa(id))
	}
}
