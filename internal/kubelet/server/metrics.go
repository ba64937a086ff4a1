package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
				e.usage(f, "container="+strconv.Quote(c.Name)+","+podLabels(&sum.Pods[i]), c.CPU, c.Memory)
			}
		}
	}
	e.family("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
	for i := range sum.Pods {
		for j := range sum.Pods[i].Containers {
			c := &sum.Pods[i].Containers[j]
			if !c.StartTime.IsZero() {
				e.value("container_start_time_seconds", "container="+strconv.Quote(c.Name)+","+podLabels(&sum.Pods[i]),
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

func (e *exposition) usage(f series, labels string, cpu *stats.CPUStats, mem *stats.MemoryStats) {
	switch {
	case f.cpu && cpu != nil && cpu.UsageCoreNanoSeconds != nil:
		e.value(f.name, labels, float64(*cpu.UsageCoreNanoSeconds)/1e9, cpu.Time.Time)
	case !f.cpu && mem != nil && mem.WorkingSetBytes != nil:
		e.value(f.name, labels, float64(*mem.WorkingSetBytes), mem.Time.Time)
	}
}

// cadvisor serves the metrics that the runtime itself describes.
func (s *Stats) cadvisor(w http.ResponseWriter, r *http.Request) {
	descriptors, err := s.Runtime.ListMetricDescriptors(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	pods, err := s.Runtime.ListPodSandboxMetrics(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	byName := map[string][]*runtimeapi.Metric{}
	for _, p := range pods {
		for _, m := range p.Metrics {
			byName[m.Name] = append(byName[m.Name], m)
		}
		for _, c := range p.ContainerMetrics {
			for _, m := range c.Metrics {
				byName[m.Name] = append(byName[m.Name], m)
			}
		}
	}
	e := &exposition{}
	for _, d := range descriptors {
		list := byName[d.Name]
		if len(list) == 0 {
			continue
		}
		e.family(d.Name, strings.ToLower(list[0].MetricType.String()), d.Help)
		for _, m := range list {
			var labels []string
			for i, key := range d.LabelKeys {
				if i < len(m.LabelValues) {
					labels = append(labels, key+"="+strconv.Quote(m.LabelValues[i]))
				}
			}
			e.value(d.Name, strings.Join(labels, ","), float64(m.GetValue().GetValue()), time.Time{})
		}
	}
	e.send(w)
}
