package metrics

import (
	"slices"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

const (
	containerMetric scope = iota
	podMetric
)

type scope int

// metric describes one metric and how to read it from a sample. Values are whole numbers, because
// CRI has no others: seconds lose their fractions.
type metric struct {
	name, help string
	kind       runtimeapi.MetricType
	labels     []string // in addition to baseLabels
	scope      scope
	pressure   bool
	read       func(in *sample, add func(value uint64, labels ...string))
}

func (d metric) descriptor() *runtimeapi.MetricDescriptor {
	return &runtimeapi.MetricDescriptor{Name: d.name, Help: d.help, LabelKeys: slices.Concat(baseLabels, d.labels)}
}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// ofContainer returns a metric with one value per container.
func ofContainer(name, help string, kind runtimeapi.MetricType, value func(in *sample) uint64) metric {
	return metric{name: "container_" + name, help: help, kind: kind,
		read: func(in *sample, add func(uint64, ...string)) { add(value(in)) }}
}

func seconds(d time.Duration) uint64 { return uint64(d / time.Second) }

var metricTable = concat(cpuMetrics, memoryMetrics, diskMetrics, networkMetrics(), processMetrics, specMetrics, pressureMetrics())

func concat(tables ...[]metric) (all []metric) {
	for _, t := range tables {
		all = append(all, t...)
	}
	return all
}

var cpuMetrics = []metric{
	{name: "container_cpu_usage_seconds_total", help: "CPU time consumed, in seconds", labels: []string{"cpu"},
		read: func(in *sample, add func(uint64, ...string)) { add(seconds(in.CPU), "total") }},
	ofContainer("cpu_user_seconds_total", "CPU time consumed in user mode, in seconds", counter, func(in *sample) uint64 { return seconds(in.User) }),
	ofContainer("cpu_system_seconds_total", "CPU time consumed in the kernel, in seconds", counter, func(in *sample) uint64 { return seconds(in.System) }),
	ofContainer("cpu_cfs_periods_total", "Periods in which the CPU quota was enforced", counter, func(in *sample) uint64 { return in.Periods }),
	ofContainer("cpu_cfs_throttled_periods_total", "Periods in which the container was throttled", counter, func(in *sample) uint64 { return in.ThrottledCount }),
	ofContainer("cpu_cfs_throttled_seconds_total", "Time for which the container was throttled, in seconds", counter, func(in *sample) uint64 { return seconds(in.Throttled) }),
}

var memoryMetrics = []metric{
	ofContainer("memory_usage_bytes", "Memory in use, page cache included", gauge, func(in *sample) uint64 { return in.MemoryUsage }),
	ofContainer("memory_max_usage_bytes", "Maximum memory in use so far", gauge, func(in *sample) uint64 { return in.MaxUsage }),
	ofContainer("memory_working_set_bytes", "Memory in use that cannot be reclaimed easily", gauge, func(in *sample) uint64 { return in.MemoryWorkingSet }),
	ofContainer("memory_rss", "Anonymous memory, in bytes", gauge, func(in *sample) uint64 { return in.MemoryRSS }),
	ofContainer("memory_cache", "Page cache, in bytes", gauge, func(in *sample) uint64 { return in.Cache }),
	ofContainer("memory_kernel_usage", "Kernel memory used by the container, in bytes", gauge, func(in *sample) uint64 { return in.Kernel }),
	ofContainer("memory_mapped_file", "Files mapped into memory, in bytes", gauge, func(in *sample) uint64 { return in.MappedFile }),
	ofContainer("memory_swap", "Swap in use, in bytes", gauge, func(in *sample) uint64 { return in.SwapUsage }),
	ofContainer("memory_failcnt", "How often the memory limit was hit", counter, func(in *sample) uint64 { return in.LimitHits }),
	{name: "container_memory_failures_total", help: "Page faults", labels: []string{"failure_type", "scope"},
		read: func(in *sample, add func(uint64, ...string)) {
			add(in.OwnFaults, "pgfault", "container")
			add(in.OwnMajorFaults, "pgmajfault", "container")
			add(in.PageFaults, "pgfault", "hierarchy")
			add(in.MajorPageFaults, "pgmajfault", "hierarchy")
		}},
	ofContainer("oom_events_total", "Processes killed because memory ran out", counter, func(in *sample) uint64 { return in.OOMKills }),
	{name: "container_hugetlb_usage_bytes", help: "Huge pages in use", kind: gauge, labels: []string{"pagesize"},
		read: func(in *sample, add func(uint64, ...string)) {
			for _, h := range in.Huge {
				add(h.Usage, h.Size)
			}
		}},
	{name: "container_hugetlb_max_usage_bytes", help: "Maximum number of huge pages in use so far", kind: gauge, labels: []string{"pagesize"},
		read: func(in *sample, add func(uint64, ...string)) {
			for _, h := range in.Huge {
				add(h.MaxUsed, h.Size)
			}
		}},
}

var diskMetrics = []metric{
	ofLayer("usage_bytes", "Size of the writable layer", func(d *diskSample) uint64 { return d.used }),
	ofLayer("limit_bytes", "Size of the file system with the writable layer", func(d *diskSample) uint64 { return d.limit }),
	ofLayer("inodes_free", "Free inodes of the file system", func(d *diskSample) uint64 { return d.inodesFree }),
	ofLayer("inodes_total", "Inodes of the file system", func(d *diskSample) uint64 { return d.inodesTotal }),
	ofDevice("reads_bytes_total", "Bytes read", func(d cgroup.DiskIO) uint64 { return d.ReadBytes }),
	ofDevice("reads_total", "Reads completed", func(d cgroup.DiskIO) uint64 { return d.Reads }),
	ofDevice("writes_bytes_total", "Bytes written", func(d cgroup.DiskIO) uint64 { return d.WriteBytes }),
	ofDevice("writes_total", "Writes completed", func(d cgroup.DiskIO) uint64 { return d.Writes }),
	{name: "container_blkio_device_usage_total", help: "Bytes read from and written to a device",
		labels: []string{"device", "major", "minor", "operation"},
		read: func(in *sample, add func(uint64, ...string)) {
			for _, d := range in.Disks {
				major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
				add(d.ReadBytes, deviceName(d.Major, d.Minor), major, minor, "Read")
				add(d.WriteBytes, deviceName(d.Major, d.Minor), major, minor, "Write")
			}
		}},
}

// ofLayer returns a metric of the file system that holds the container's writable layer.
func ofLayer(name, help string, value func(d *diskSample) uint64) metric {
	return metric{name: "container_fs_" + name, help: help, kind: gauge, labels: []string{"device"},
		read: func(in *sample, add func(uint64, ...string)) { add(value(in.disk), in.disk.device) }}
}

func networkMetrics() (all []metric) {
	for _, direction := range []struct {
		name, verb string
		of         func(l link) linkCounters
	}{
		{"receive", "received", func(l link) linkCounters { return l.rx }},
		{"transmit", "sent", func(l link) linkCounters { return l.tx }},
	} {
		for _, m := range []struct {
			name, help string
			value      func(c linkCounters) uint64
		}{
			{"bytes", "Bytes " + direction.verb, func(c linkCounters) uint64 { return c.bytes }},
			{"packets", "Packets " + direction.verb, func(c linkCounters) uint64 { return c.packets }},
			{"packets_dropped", "Packets dropped, not " + direction.verb, func(c linkCounters) uint64 { return c.drops }},
			{"errors", "Errors; packets not " + direction.verb, func(c linkCounters) uint64 { return c.errors }},
		} {
			all = append(all, metric{
				name: "container_network_" + direction.name + "_" + m.name + "_total", help: m.help, labels: []string{"interface"}, scope: podMetric,
				read: func(in *sample, add func(uint64, ...string)) {
					for _, l := range in.network {
						add(m.value(direction.of(l)), l.name)
					}
				}})
		}
	}
	return all
}

// ofDevice returns a metric with one value for each device that the container used.
func ofDevice(name, help string, value func(d cgroup.DiskIO) uint64) metric {
	return metric{name: "container_fs_" + name, help: help, labels: []string{"device"},
		read: func(in *sample, add func(uint64, ...string)) {
			for _, d := range in.Disks {
				add(value(d), deviceName(d.Major, d.Minor))
			}
		}}
}

var processMetrics = []metric{
	ofContainer("processes", "Processes in the container", gauge, func(in *sample) uint64 { return in.processes.processes }),
	ofContainer("threads", "Threads in the container", gauge, func(in *sample) uint64 { return in.processes.threads }),
	ofContainer("threads_max", "Maximum number of threads in the container; 0 is no limit", gauge, func(in *sample) uint64 { return in.Max }),
	ofContainer("file_descriptors", "Open files of the container's processes", gauge, func(in *sample) uint64 { return in.processes.files }),
	ofContainer("sockets", "Open sockets of the container's processes", gauge, func(in *sample) uint64 { return in.processes.sockets }),
	{name: "container_ulimits_soft", help: "Soft limits of the container's first process", kind: gauge, labels: []string{"ulimit"},
		read: func(in *sample, add func(uint64, ...string)) { add(in.processes.openFiles, "max_open_files") }},
	ofContainer("last_seen", "When the container was measured, in seconds since 1970", gauge, func(in *sample) uint64 { return uint64(in.now.Unix()) }),
	ofContainer("start_time_seconds", "When the container was started, in seconds since 1970", gauge,
		func(in *sample) uint64 { return uint64(time.Unix(0, in.started).Unix()) }),
}

var specMetrics = []metric{
	ofContainer("spec_cpu_shares", "CPU shares", gauge, func(in *sample) uint64 { return in.Shares }),
	ofContainer("spec_cpu_period", "Period of the CPU quota, in microseconds", gauge, func(in *sample) uint64 { return in.Period }),
	{name: "container_spec_cpu_quota", help: "CPU quota in each period, in microseconds", kind: gauge,
		read: func(in *sample, add func(uint64, ...string)) {
			if in.Quota > 0 {
				add(uint64(in.Quota))
			}
		}},
	ofContainer("spec_memory_limit_bytes", "Memory limit; 0 is none", gauge, func(in *sample) uint64 { return in.MemoryLimit }),
	ofContainer("spec_memory_reservation_limit_bytes", "Memory reservation; 0 is none", gauge, func(in *sample) uint64 { return in.Reservation }),
	ofContainer("spec_memory_swap_limit_bytes", "Limit of memory and swap together; 0 is none", gauge, func(in *sample) uint64 { return in.SwapLimit }),
}

func pressureMetrics() (all []metric) {
	for _, r := range []struct {
		name string
		of   func(in *sample) *cgroup.Pressure
	}{
		{"cpu", func(in *sample) *cgroup.Pressure { return in.CPUPressure }},
		{"memory", func(in *sample) *cgroup.Pressure { return in.MemoryPressure }},
		{"io", func(in *sample) *cgroup.Pressure { return in.IOPressure }},
	} {
		add := func(kind, help string, line func(p *cgroup.Pressure) cgroup.PressureLine) {
			all = append(all, metric{name: "container_pressure_" + r.name + "_" + kind + "_seconds_total", help: help, pressure: true,
				read: func(in *sample, add func(uint64, ...string)) {
					if p := r.of(in); p != nil {
						add(seconds(line(p).Total))
					}
				}})
		}
		add("stalled", "Time in which all tasks were stalled for lack of "+r.name+", in seconds", func(p *cgroup.Pressure) cgroup.PressureLine { return p.Full })
		add("waiting", "Time in which tasks waited for "+r.name+", in seconds", func(p *cgroup.Pressure) cgroup.PressureLine { return p.Some })
	}
	return all
}
