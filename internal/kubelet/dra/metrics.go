package dra

import (
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	kubeletmetrics "wherry.dev/internal/kubelet/metrics"
)

// inUse counts the claims of which something may be prepared, when somebody asks.
type inUse struct {
	metrics.BaseStableCollector
	of atomic.Pointer[Manager]
}

var (
	inUseDesc = metrics.NewDesc("dra_resource_claims_in_use",
		"Number of ResourceClaims in use on the node, by driver; <any> counts each claim once, whoever has prepared it.",
		[]string{"driver_name"}, nil, metrics.ALPHA, "")
	census = &inUse{}
)

func init() { legacyregistry.CustomMustRegister(census) }

// DescribeWithStability implements metrics.StableCollector.
func (*inUse) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- inUseDesc }

// CollectWithStability implements metrics.StableCollector.
func (c *inUse) CollectWithStability(ch chan<- metrics.Metric) {
	m := c.of.Load()
	if m == nil {
		return
	}
	for driver, n := range m.count() {
		ch <- metrics.NewLazyConstMetric(inUseDesc, metrics.GaugeValue, float64(n), driver)
	}
}

// count returns how many claims are in use, by driver.
func (m *Manager) count() map[string]int {
	out := map[string]int{"<any>": 0}
	uids, err := m.all()
	if err != nil {
		klog.Background().Error(err, "Cannot count the resource claims in use")
		return out
	}
	for _, uid := range uids {
		out["<any>"]++
		c, err := m.read(uid)
		if err != nil {
			klog.Background().Error(err, "Cannot tell which drivers have prepared a resource claim")
		}
		if c != nil {
			for driver := range c.Drivers {
				out[driver]++
			}
		}
	}
	return out
}

// observe notes how long all claims of a pod took.
func observe(operation string, err error, took time.Duration) {
	kubeletmetrics.DRAOperations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// observeCall notes how long a driver took.
func observeCall(driver, method string, err error, took time.Duration) {
	kubeletmetrics.DRACalls.WithLabelValues(driver, method, status.Code(err).String()).Observe(took.Seconds())
}
