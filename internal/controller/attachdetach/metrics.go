package attachdetach

import (
	"strconv"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/api/attachments"
)

// Metrics under upstream's names.
var (
	inUseDesc = metrics.NewDesc("storage_count_attachable_volumes_in_use",
		"Number of volumes of the pods of a node, by the kind of volume.",
		[]string{"node", "volume_plugin"}, nil, metrics.ALPHA, "")
	totalDesc = metrics.NewDesc("attachdetach_controller_total_volumes",
		"Number of volumes that nodes have, or are to have, by the kind of volume.",
		[]string{"plugin_name", "state"}, nil, metrics.ALPHA, "")

	forced = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "attach_detach_controller", Name: "attachdetach_controller_forced_detaches", StabilityLevel: metrics.ALPHA,
		Help: "Number of volumes that were detached although their node was not known to have stopped using them.",
	}, []string{"reason"})
	operations = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name: "storage_operation_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time from when a volume was to be attached or detached until it was, in seconds.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})
)

// Labels of operations.
const (
	attaching = "volume_attach"
	detaching = "volume_detach"
	success   = "success"
	failure   = "fail-unknown"
)

// States of volumes that are counted.
const (
	wanted = "desired_state_of_world"
	actual = "actual_state_of_world"
)

func init() {
	legacyregistry.MustRegister(forced, operations)
	legacyregistry.CustomMustRegister(&census)
}

// plugin is upstream's name for the kind of a driver's volumes.
func plugin(driver string) string { return "kubernetes.io/csi:" + driver }

// pluginOf is upstream's name for the kind of a volume that is attached; "" for a name of another volume.
func pluginOf(name v1.UniqueVolumeName) string {
	if driver, _, ok := attachments.SplitVolumeName(name); ok {
		return plugin(driver)
	}
	return attachments.KindByNode(name)
}

func (f *facts) plugin() string { return pluginOf(f.name) }

// operation counts what was done about a volume, which may be nil.
func operation(name, plugin, status string, pv *v1.PersistentVolume, took time.Duration) {
	migrated := pv != nil && pv.Spec.CSI == nil && attachments.ByNode(&pv.Spec.PersistentVolumeSource) == ""
	operations.WithLabelValues(plugin, name, status, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

// observe notes what the attacher has done at a place since the last look.
func (f *facts) observe(p *place, t *trace) {
	a := p.attachment
	switch {
	case t.asked.IsZero() || t.uncertain:
	case a == nil: // it was deleted before it was attached
		t.asked = time.Time{}
	case a.Status.Attached:
		operation(attaching, f.plugin(), success, p.volume, f.now.Sub(t.asked))
		t.asked = time.Time{}
	}
	if !t.released.IsZero() && a == nil {
		operation(detaching, f.plugin(), success, p.volume, f.now.Sub(t.released))
		t.released = time.Time{}
	}
}

// census counts the volumes of the controller that was made last: a process has one.
var census counter

type counter struct {
	metrics.BaseStableCollector
	of atomic.Pointer[Controller]
}

// DescribeWithStability implements metrics.StableCollector.
func (*counter) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- inUseDesc
	ch <- totalDesc
}

// CollectWithStability implements metrics.StableCollector.
func (n *counter) CollectWithStability(ch chan<- metrics.Metric) {
	c := n.of.Load()
	if c == nil {
		return
	}
	inUse, total, err := c.count()
	if err != nil {
		return // there is nobody to tell
	}
	for s, count := range inUse {
		ch <- metrics.NewLazyConstMetric(inUseDesc, metrics.GaugeValue, float64(count), s.first, s.second)
	}
	for s, count := range total {
		ch <- metrics.NewLazyConstMetric(totalDesc, metrics.GaugeValue, float64(count), s.first, s.second)
	}
}

// series has the two labels of a metric.
type series struct{ first, second string }

// count returns the volumes in use by node and kind, and all volumes by kind and state.
func (c *Controller) count() (inUse, total map[series]int, err error) {
	inUse, total = map[series]int{}, map[series]int{}
	type spot struct {
		volume v1.UniqueVolumeName
		node   string
	}
	spots := map[spot]bool{}
	used := func(name v1.UniqueVolumeName, node string, attachable bool) {
		inUse[series{node, pluginOf(name)}]++
		if at := (spot{name, node}); attachable && !spots[at] {
			spots[at] = true
			total[series{pluginOf(name), wanted}]++
		}
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return nil, nil, err
	}
	for _, pv := range volumes {
		name := nameOf(pv)
		if name == "" {
			continue
		}
		attachable := true
		if driver, _, ok := attachments.SplitVolumeName(name); ok {
			if attachable, err = c.attachable(driver); err != nil {
				return nil, nil, err
			}
		}
		pods, err := c.podsOf(pv)
		if err != nil {
			return nil, nil, err
		}
		for _, pod := range pods {
			used(name, pod.Spec.NodeName, attachable)
		}
	}
	for _, own := range c.podIndex.ListIndexFuncValues(byName) {
		name := v1.UniqueVolumeName(own)
		err := c.ownUsers(name, func(node string) *place { used(name, node, true); return &place{} })
		if err != nil {
			return nil, nil, err
		}
	}
	return inUse, total, c.countAttached(total)
}

// countAttached adds the volumes that are attached, or about to be.
func (c *Controller) countAttached(total map[series]int) error {
	all, err := c.attachments.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, a := range all {
		if attachments.IsName(a.Name) {
			total[series{plugin(a.Spec.Attacher), actual}]++
		}
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		for _, a := range n.Status.VolumesAttached {
			if kind := attachments.KindByNode(a.Name); kind != "" {
				total[series{kind, actual}]++
			}
		}
	}
	return nil
}
