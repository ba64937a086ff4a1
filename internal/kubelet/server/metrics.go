package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/metrics"
)

func (s *Server) probes(w http.ResponseWriter, r *http.Request) {
	metrics.ProbesHandler().ServeHTTP(w, r)
}

// exposition writes metrics in the Prometheus text format, a family at a time.
type exposition struct{ bytes.Buffer }

func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (e *exposition) value(name, labels string, v float64, at time.Time) {
	e.WriteString(name)
	if labels != "" {
		e.WriteString("{" + labels + "}")
	}
	e.WriteString(" " + strconv.FormatFloat(v, 'g', -1, 64))
	if !at.IsZero() {
		e.WriteString(" " + strconv.FormatInt(at.UnixMilli(), 10))
	}
	e.WriteByte('\n')
}

func (e *exposition) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.Bytes())
}

// series is one metric of the resource endpoint.
type series struct {
	name, kind, help string
	cpu              bool
}

// resource serves what metrics-server reads.
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
	e.family("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	e.value("resource_scrape_error", "", failed, time.Time{})
	e.family("scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	e.value("scrape_error", "", failed, time.Time{})
	e.send(w)
}

func resourceFamilies(e *exposition, sum *stats.Summary) {
	for _, f := range []series{
		{"container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds", true},
		{"container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes", false},
	} {
		e.family(f.name, f.kind, f.help)
		for i := range sum.Pods {
			for j := range sum.Pods[i].Containers {
				c := &sum.Pods[i].Containers[j]
				e.usage(f, containerLabels(&sum.Pods[i], c), c.CPU, c.Memory)
			}
		}
	}
	e.family("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
	for i := range sum.Pods {
		for j := range sum.Pods[i].Containers {
			c := &sum.Pods[i].Containers[j]
			if !c.StartTime.IsZero() {
				e.value("container_start_time_seconds", containerLabels(&sum.Pods[i], c),
					float64(c.StartTime.UnixNano())/1e9, time.Time{})
			}
		}
	}
	node := []series{
		{"node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds", true},
		{"node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes", false},
	}
	for _, f := range node {
		e.family(f.name, f.kind, f.help)
		e.usage(f, "", sum.Node.CPU, sum.Node.Memory)
	}
	for _, f := range []series{
		{"pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds", true},
		{"pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", false},
	} {
		e.family(f.name, f.kind, f.help)
		for i := range sum.Pods {
			e.usage(f, podLabels(&sum.Pods[i]), sum.Pods[i].CPU, sum.Pods[i].Memory)
		}
	}
}

func podLabels(p *stats.PodStats) string {
	return "namespace=" + strconv.Quote(p.PodRef.Namespace) + ",pod=" + strconv.Quote(p.PodRef.Name)
}

func containerLabels(p *stats.PodStats, c *stats.ContainerStats) string {
	return "container=" + strconv.Quote(c.Name) + "," + podLabels(p)
}

// swapFamilies are what containers, pods and the node have swapped out.
func swapFamilies(e *exposition, sum *stats.Summary) {
	put := func(name, labels string, at time.Time, n *uint64) {
		if n != nil {
			e.value(name, labels, float64(*n), at)
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
	e.family("container_swap_usage_bytes", "gauge", "Current amount of the container swap usage in bytes. Reported only on non-windows systems")
	each(func(p *stats.PodStats, c *stats.ContainerStats) {
		put("container_swap_usage_bytes", containerLabels(p, c), c.Swap.Time.Time, c.Swap.SwapUsageBytes)
	})
	e.family("container_swap_limit_bytes", "gauge", "Current amount of the container swap limit in bytes. Reported only on non-windows systems")
	each(func(p *stats.PodStats, c *stats.ContainerStats) {
		if free := c.Swap.SwapAvailableBytes; free != nil {
			limit := *free
			if used := c.Swap.SwapUsageBytes; used != nil {
				limit += *used
			}
			put("container_swap_limit_bytes", containerLabels(p, c), c.Swap.Time.Time, &limit)
		}
	})
	e.family("pod_swap_usage_bytes", "gauge", "Current amount of the pod swap usage in bytes. Reported only on non-windows systems")
	for i := range sum.Pods {
		if sw := sum.Pods[i].Swap; sw != nil {
			put("pod_swap_usage_bytes", podLabels(&sum.Pods[i]), sw.Time.Time, sw.SwapUsageBytes)
		}
	}
	e.family("node_swap_usage_bytes", "gauge", "Current swap usage of the node in bytes. Reported only on non-windows systems")
	if sw := sum.Node.Swap; sw != nil {
		put("node_swap_usage_bytes", "", sw.Time.Time, sw.SwapUsageBytes)
	}
}

func (e *exposition) usage(f series, labels string, cpu *stats.CPUStats, mem *stats.MemoryStats) {
	switch {
	case f.cpu && cpu != nil && cpu.UsageCoreNanoSeconds != nil:
		e.value(f.name, labels, float64(*cpu.UsageCoreNanoSeconds)/1e9, cpu.Time.Time)
	case !f.cpu && mem != nil && mem.WorkingSetBytes != nil:
		e.value(f.name, labels, float64(*mem.WorkingSetBytes), mem.Time.Time)
	}
}
