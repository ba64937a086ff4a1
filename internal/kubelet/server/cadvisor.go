package server

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// cadvisor serves the metrics that dashboards know from cAdvisor: the machine's, and those of
// containers, as described by the runtime itself (KEP-2371). If the runtime describes none, it
// serves the families that can be derived from the runtime's statistics.
func (s *Stats) cadvisor(w http.ResponseWriter, r *http.Request) {
	e := &exposition{}
	s.machine(e)
	err := s.described(r.Context(), e)
	if status.Code(err) == codes.Unimplemented {
		err = s.derived(r.Context(), e)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	e.send(w, r)
}

// machine adds what the machine has.
func (s *Stats) machine(e *exposition) {
	m := s.Machine
	labels := labelled("boot_id", m.BootID, "machine_id", m.MachineID, "system_uuid", m.SystemUUID)
	memory := keyed("/proc/meminfo")
	for _, f := range []struct {
		name, help string
		value      float64
	}{
		{"machine_cpu_cores", "Number of logical CPU cores.", float64(runtime.NumCPU())},
		{"machine_memory_bytes", "Amount of memory installed on the machine.", float64(memory["MemTotal"]) * 1024},
		{"machine_swap_bytes", "Amount of swap memory available on the machine.", float64(memory["SwapTotal"]) * 1024},
	} {
		e.family(f.name, dto.MetricType_GAUGE, f.help)
		e.value(labels, f.value, time.Time{})
	}
	e.family("machine_scrape_error", dto.MetricType_GAUGE, "1 if there was an error while getting machine metrics, 0 otherwise.")
	e.value(nil, 0, time.Time{})
	e.family("cadvisor_version_info", dto.MetricType_GAUGE, "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.")
	e.value(labelled("cadvisorRevision", "", "cadvisorVersion", "", "dockerVersion", "", "kernelVersion", m.KernelVersion, "osVersion", m.OSImage), 1, time.Time{})
}

// described adds the families that the runtime describes.
func (s *Stats) described(ctx context.Context, e *exposition) error {
	descriptors, err := s.Runtime.ListMetricDescriptors(ctx)
	if err != nil {
		return err
	}
	pods, err := s.Runtime.ListPodSandboxMetrics(ctx)
	if err != nil {
		return err
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
	slices.SortFunc(descriptors, func(a, b *runtimeapi.MetricDescriptor) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range descriptors {
		list := byName[d.Name]
		if len(list) == 0 {
			continue
		}
		kind := dto.MetricType_GAUGE
		if list[0].MetricType == runtimeapi.MetricType_COUNTER {
			kind = dto.MetricType_COUNTER
		}
		e.family(d.Name, kind, d.Help)
		for _, m := range list {
			var labels []*dto.LabelPair
			for i, key := range d.LabelKeys {
				if i < len(m.LabelValues) {
					labels = append(labels, labelled(key, m.LabelValues[i])...)
				}
			}
			e.value(labels, float64(m.GetValue().GetValue()), time.Time{})
		}
	}
	return nil
}

// derivation is a container metric family, and where its value comes from.
type derivation struct {
	name  string
	kind  dto.MetricType
	help  string
	of    func(c *stats.ContainerStats) *uint64
	scale float64
}

var derivations = []derivation{
	{"container_cpu_usage_seconds_total", dto.MetricType_COUNTER, "Cumulative cpu time consumed in seconds.", func(c *stats.ContainerStats) *uint64 {
		if c.CPU == nil {
			return nil
		}
		return c.CPU.UsageCoreNanoSeconds
	}, 1e-9},
	{"container_memory_working_set_bytes", dto.MetricType_GAUGE, "Current working set in bytes.", ofMemory(func(m *stats.MemoryStats) *uint64 { return m.WorkingSetBytes }), 1},
	{"container_memory_usage_bytes", dto.MetricType_GAUGE, "Current memory usage in bytes, including all memory regardless of when it was accessed", ofMemory(func(m *stats.MemoryStats) *uint64 { return m.UsageBytes }), 1},
	{"container_memory_rss", dto.MetricType_GAUGE, "Size of RSS in bytes.", ofMemory(func(m *stats.MemoryStats) *uint64 { return m.RSSBytes }), 1},
	{"container_fs_usage_bytes", dto.MetricType_GAUGE, "Number of bytes that are consumed by the container on this filesystem.", func(c *stats.ContainerStats) *uint64 {
		if c.Rootfs == nil {
			return nil
		}
		return c.Rootfs.UsedBytes
	}, 1},
	{"container_fs_inodes_total", dto.MetricType_GAUGE, "Number of Inodes", func(c *stats.ContainerStats) *uint64 {
		if c.Rootfs == nil {
			return nil
		}
		return c.Rootfs.Inodes
	}, 1},
}

func ofMemory(f func(*stats.MemoryStats) *uint64) func(*stats.ContainerStats) *uint64 {
	return func(c *stats.ContainerStats) *uint64 {
		if c.Memory == nil {
			return nil
		}
		return f(c.Memory)
	}
}

// derived adds families from the statistics of a runtime that describes none.
func (s *Stats) derived(ctx context.Context, e *exposition) error {
	sum, err := s.gather(ctx, false)
	if err != nil {
		return err
	}
	ids := s.identities()
	labels := func(p *stats.PodStats, container string) []*dto.LabelPair {
		id := ids[p.PodRef.UID+"/"+container]
		return append(labelled("container", container, "id", id.id, "image", id.image, "name", id.id), podLabels(p)...)
	}
	for _, d := range derivations {
		e.family(d.name, d.kind, d.help)
		for i := range sum.Pods {
			for j := range sum.Pods[i].Containers {
				c := &sum.Pods[i].Containers[j]
				if n := d.of(c); n != nil {
					e.value(labels(&sum.Pods[i], c.Name), float64(*n)*d.scale, time.Time{})
				}
			}
		}
	}
	for _, d := range []struct {
		name, help string
		of         func(i *stats.InterfaceStats) *uint64
	}{
		{"container_network_receive_bytes_total", "Cumulative count of bytes received", func(i *stats.InterfaceStats) *uint64 { return i.RxBytes }},
		{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", func(i *stats.InterfaceStats) *uint64 { return i.RxErrors }},
		{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", func(i *stats.InterfaceStats) *uint64 { return i.TxBytes }},
		{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", func(i *stats.InterfaceStats) *uint64 { return i.TxErrors }},
	} {
		e.family(d.name, dto.MetricType_COUNTER, d.help)
		for i := range sum.Pods {
			if sum.Pods[i].Network == nil {
				continue
			}
			for j := range sum.Pods[i].Network.Interfaces {
				one := &sum.Pods[i].Network.Interfaces[j]
				if n := d.of(one); n != nil {
					e.value(append(labels(&sum.Pods[i], ""), labelled("interface", one.Name)...), float64(*n), time.Time{})
				}
			}
		}
	}
	return nil
}

// identity is how cAdvisor identifies a container.
type identity struct{ id, image string }

func (s *Stats) identities() map[string]identity {
	out := map[string]identity{}
	for _, p := range s.Pods.List() {
		for i := range p.Input.Containers {
			c := &p.Input.Containers[i]
			if c.Live() {
				out[string(p.Pod.UID)+"/"+c.Name] = identity{c.ID, c.Image}
			}
		}
	}
	return out
}

// Claims returns the volumes of pods that belong to persistent volume claims, each once.
func (s *Stats) Claims() []stats.VolumeStats {
	var out []stats.VolumeStats
	seen := map[stats.PVCReference]bool{}
	for _, p := range s.Pods.List() {
		if !hasClaims(p.Pod) {
			continue
		}
		volumes, _ := s.volumes(p.Pod, time.Now())
		for _, v := range volumes {
			if v.PVCRef != nil && !seen[*v.PVCRef] {
				seen[*v.PVCRef] = true
				out = append(out, v)
			}
		}
	}
	return out
}
