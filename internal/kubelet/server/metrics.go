package server

import (
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/metrics"
)

func (s *Server) probes(w http.ResponseWriter, r *http.Request) {
	metrics.ProbesHandler().ServeHTTP(w, r)
}

// exposition collects metrics for Prometheus, one family at a time.
type exposition struct{ families []*dto.MetricFamily }

// family begins a family; a family without values is left out.
func (e *exposition) family(name string, kind dto.MetricType, help string) {
	e.families = append(e.families, &dto.MetricFamily{Name: &name, Help: &help, Type: &kind})
}

// value adds a metric to the newest family.
func (e *exposition) value(labels []*dto.LabelPair, v float64, at time.Time) {
	f := e.families[len(e.families)-1]
	m := &dto.Metric{Label: labels}
	if f.GetType() == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &v}
	} else {
		m.Gauge = &dto.Gauge{Value: &v}
	}
	if !at.IsZero() {
		m.TimestampMs = new(at.UnixMilli())
	}
	f.Metric = append(f.Metric, m)
}

// send responds in the format that the client asks for.
func (e *exposition) send(w http.ResponseWriter, r *http.Request) {
	format := expfmt.Negotiate(r.Header)
	w.Header().Set("Content-Type", string(format))
	enc := expfmt.NewEncoder(w, format)
	for _, f := range e.families {
		if len(f.Metric) == 0 {
			continue
		}
		if err := enc.Encode(f); err != nil {
			klog.FromContext(r.Context()).V(2).Info("Failed to send all metrics", "family", f.GetName(), "err", err)
			return
		}
	}
}

// labelled returns labels from alternating names and values.
func labelled(pairs ...string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(pairs)/2)
	for pair := range slices.Chunk(pairs, 2) {
		out = append(out, &dto.LabelPair{Name: &pair[0], Value: &pair[1]})
	}
	return out
}

// series is one metric of the resource endpoint.
type series struct {
	name, help string
	cpu        bool
}

// kind returns a counter for CPU time, and a gauge for memory.
func (s series) kind() dto.MetricType {
	if s.cpu {
		return dto.MetricType_COUNTER
	}
	return dto.MetricType_GAUGE
}

// resource serves the metrics that metrics-server reads.
func (s *Stats) resource(w http.ResponseWriter, r *http.Request) {
	e := &exposition{}
	sum, err := s.gather(r.Context(), true)
	failed := 0.0
	if err != nil {
		failed = 1
	} else {
		resourceFamilies(e, sum)
		swapFamilies(e, sum)
	}
	e.family("resource_scrape_error", dto.MetricType_GAUGE, "1 if there was an error while getting container metrics, 0 otherwise")
	e.value(nil, failed, time.Time{})
	e.send(w, r)
}

func resourceFamilies(e *exposition, sum *stats.Summary) {
	for _, f := range []series{
		{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", true},
		{"container_memory_working_set_bytes", "Current working set of the container in bytes", false},
	} {
		e.family(f.name, f.kind(), f.help)
		for i := range sum.Pods {
			for j := range sum.Pods[i].Containers {
				c := &sum.Pods[i].Containers[j]
				e.usage(f, containerLabels(&sum.Pods[i], c), c.CPU, c.Memory)
			}
		}
	}
	e.family("container_start_time_seconds", dto.MetricType_GAUGE, "Start time of the container since unix epoch in seconds")
	for i := range sum.Pods {
		for j := range sum.Pods[i].Containers {
			c := &sum.Pods[i].Containers[j]
			if !c.StartTime.IsZero() {
				e.value(containerLabels(&sum.Pods[i], c), float64(c.StartTime.UnixNano())/1e9, time.Time{})
			}
		}
	}
	node := []series{
		{"node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", true},
		{"node_memory_working_set_bytes", "Current working set of the node in bytes", false},
	}
	for _, f := range node {
		e.family(f.name, f.kind(), f.help)
		e.usage(f, nil, sum.Node.CPU, sum.Node.Memory)
	}
	for _, f := range []series{
		{"pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", true},
		{"pod_memory_working_set_bytes", "Current working set of the pod in bytes", false},
	} {
		e.family(f.name, f.kind(), f.help)
		for i := range sum.Pods {
			e.usage(f, podLabels(&sum.Pods[i]), sum.Pods[i].CPU, sum.Pods[i].Memory)
		}
	}
}

func podLabels(p *stats.PodStats) []*dto.LabelPair {
	return labelled("namespace", p.PodRef.Namespace, "pod", p.PodRef.Name)
}

func containerLabels(p *stats.PodStats, c *stats.ContainerStats) []*dto.LabelPair {
	return append(labelled("container", c.Name), podLabels(p)...)
}

// swapFamilies adds what containers, pods and the node have swapped out.
func swapFamilies(e *exposition, sum *stats.Summary) {
	put := func(labels []*dto.LabelPair, at time.Time, n *uint64) {
		if n != nil {
			e.value(labels, float64(*n), at)
		}
	}
	each := func(f func(p *stats.PodStats, c *stats.ContainerStats)) {
		for i := range sum.Pods {
			for j := range sum.Pods[i].Containers {
				if c := &sum.Pods[i].Containers[j]; c.Swap != nil {
					f(&sum.Pods[i], c)
				}
			}
		}
	}
	e.family("container_swap_usage_bytes", dto.MetricType_GAUGE, "Current amount of the container swap usage in bytes. Reported only on non-windows systems")
	each(func(p *stats.PodStats, c *stats.ContainerStats) {
		put(containerLabels(p, c), c.Swap.Time.Time, c.Swap.SwapUsageBytes)
	})
	e.family("container_swap_limit_bytes", dto.MetricType_GAUGE, "Current amount of the container swap limit in bytes. Reported only on non-windows systems")
	each(func(p *stats.PodStats, c *stats.ContainerStats) {
		if free := c.Swap.SwapAvailableBytes; free != nil {
			limit := *free
			if used := c.Swap.SwapUsageBytes; used != nil {
				limit += *used
			}
			put(containerLabels(p, c), c.Swap.Time.Time, &limit)
		}
	})
	e.family("pod_swap_usage_bytes", dto.MetricType_GAUGE, "Current amount of the pod swap usage in bytes. Reported only on non-windows systems")
	for i := range sum.Pods {
		if sw := sum.Pods[i].Swap; sw != nil {
			put(podLabels(&sum.Pods[i]), sw.Time.Time, sw.SwapUsageBytes)
		}
	}
	e.family("node_swap_usage_bytes", dto.MetricType_GAUGE, "Current swap usage of the node in bytes. Reported only on non-windows systems")
	if sw := sum.Node.Swap; sw != nil {
		put(nil, sw.Time.Time, sw.SwapUsageBytes)
	}
}

func (e *exposition) usage(f series, labels []*dto.LabelPair, cpu *stats.CPUStats, mem *stats.MemoryStats) {
	switch {
	case f.cpu && cpu != nil && cpu.UsageCoreNanoSeconds != nil:
		e.value(labels, float64(*cpu.UsageCoreNanoSeconds)/1e9, cpu.Time.Time)
	case !f.cpu && mem != nil && mem.WorkingSetBytes != nil:
		e.value(labels, float64(*mem.WorkingSetBytes), mem.Time.Time)
	}
}
