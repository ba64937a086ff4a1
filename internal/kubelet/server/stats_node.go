package server

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/cgroup"
)

// userHZ is the unit of times in /proc.
const userHZ = uint64(time.Second) / 100

// node measures the machine itself.
func (s *Stats) node(ctx context.Context, now time.Time, short bool) stats.NodeStats {
	t := metav1.NewTime(now)
	out := stats.NodeStats{NodeName: s.NodeName, StartTime: metav1.NewTime(bootTime(now))}
	if busy, ok := cpuBusy(); ok {
		out.CPU = &stats.CPUStats{Time: t, UsageCoreNanoSeconds: &busy, UsageNanoCores: s.rate("node", now, busy), PSI: nodePressure("cpu")}
	}
	out.Memory, out.Swap = nodeMemory(t, cgroup.RootMemory)
	out.SystemContainers = s.system(now)
	if short {
		return out
	}
	if psi := nodePressure("io"); psi != nil {
		out.IO = &stats.IOStats{Time: t, PSI: psi}
	}
	out.Network = nodeNetwork(t)
	if fs := fsStats(s.RootDir, t); fs != nil {
		out.Fs = fs
		out.Runtime = s.runtimeFs(ctx, t, fs)
	}
	out.Rlimit = processes(t)
	return out
}

// runtimeFs returns where images and containers are stored; used is what they themselves use.
func (s *Stats) runtimeFs(ctx context.Context, t metav1.Time, node *stats.FsStats) *stats.RuntimeStats {
	out := &stats.RuntimeStats{ImageFs: node, ContainerFs: node}
	if s.Images == nil {
		return out
	}
	info, err := s.Images.ImageFsInfo(ctx)
	if err != nil {
		return out
	}
	at := func(list []*runtimeapi.FilesystemUsage, to **stats.FsStats) {
		if len(list) == 0 {
			return
		}
		fs := fsStats(list[0].GetFsId().GetMountpoint(), t)
		if fs == nil {
			return
		}
		fs.UsedBytes, fs.InodesUsed = value(list[0].UsedBytes), value(list[0].InodesUsed)
		*to = fs
	}
	at(info.ImageFilesystems, &out.ImageFs)
	at(info.ContainerFilesystems, &out.ContainerFs)
	return out
}

// system returns parts of the node: this process, and all pods together.
func (s *Stats) system(now time.Time) []stats.ContainerStats {
	var out []stats.ContainerStats
	if c, ok := s.ourselves(now); ok {
		out = append(out, c)
	}
	if s.PodsCgroup == "" {
		return out
	}
	cpu, mem, err := s.group(stats.SystemContainerPods, s.PodsCgroup)
	if err != nil {
		return out
	}
	return append(out, stats.ContainerStats{
		Name: stats.SystemContainerPods, StartTime: metav1.NewTime(bootTime(now)), CPU: cpu, Memory: mem,
	})
}

// group measures a cgroup; its rate is kept under the key.
func (s *Stats) group(key, path string) (*stats.CPUStats, *stats.MemoryStats, error) {
	m, err := cgroup.ReadStats(path)
	if err != nil {
		return nil, nil, err
	}
	t, cpu := metav1.NewTime(m.Time), uint64(m.CPU)
	return &stats.CPUStats{Time: t, UsageCoreNanoSeconds: &cpu, UsageNanoCores: s.rate(key, m.Time, cpu)},
		&stats.MemoryStats{
			Time: t, UsageBytes: &m.MemoryUsage, WorkingSetBytes: &m.MemoryWorkingSet, RSSBytes: &m.MemoryRSS,
			PageFaults: &m.PageFaults, MajorPageFaults: &m.MajorPageFaults,
		}, nil
}

// ourselves measures the process that the kubelet is part of.
func (s *Stats) ourselves(now time.Time) (stats.ContainerStats, bool) {
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) != nil {
		return stats.ContainerStats{}, false
	}
	cpu := uint64(use.Utime.Nano() + use.Stime.Nano())
	c := stats.ContainerStats{Name: stats.SystemContainerKubelet, StartTime: metav1.NewTime(started)}
	t := metav1.NewTime(now)
	c.CPU = &stats.CPUStats{Time: t, UsageCoreNanoSeconds: &cpu, UsageNanoCores: s.rate(stats.SystemContainerKubelet, now, cpu)}
	data, err := os.ReadFile("/proc/self/statm")
	if f := strings.Fields(string(data)); err == nil && len(f) > 2 {
		resident, err1 := strconv.ParseUint(f[1], 10, 64)
		shared, err2 := strconv.ParseUint(f[2], 10, 64)
		if page := uint64(os.Getpagesize()); err1 == nil && err2 == nil {
			working, rss := resident*page, (resident-min(shared, resident))*page
			c.Memory = &stats.MemoryStats{Time: t, UsageBytes: &working, WorkingSetBytes: &working, RSSBytes: &rss}
		}
	}
	return c, true
}

// started is approximately when this process began.
var started = time.Now()

// cpuBusy returns the time that all CPUs were not idle, from /proc/stat.
func cpuBusy() (uint64, bool) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, false
	}
	busy := uint64(0)
	for i, f := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 { // idle, iowait
			busy += n
		}
	}
	return busy * userHZ, true
}

// keyed reads a file of "name value" lines, such as /proc/meminfo.
func keyed(path string) map[string]uint64 {
	v := map[string]uint64{}
	data, err := os.ReadFile(path)
	if err != nil {
		return v
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			v[strings.TrimSuffix(f[0], ":")] = n
		}
	}
	return v
}

// nodeMemory returns what the machine uses of its memory, by the measure that decides about eviction: files that were used just
// now count. used returns what is used, and what of that is files that nobody has used for a while.
func nodeMemory(t metav1.Time, used func() (usage, inactive uint64, err error)) (*stats.MemoryStats, *stats.SwapStats) {
	v := keyed("/proc/meminfo")
	if v["MemTotal"] == 0 {
		return nil, nil
	}
	kib := func(n uint64) *uint64 {
		n *= 1024
		return &n
	}
	usage, inactive, err := used()
	if err != nil {
		usage, inactive = (v["MemTotal"]-v["MemFree"])*1024, v["Inactive(file)"]*1024
	}
	working := usage - min(inactive, usage)
	gone := working + v["Hugetlb"]*1024 // huge pages, which are counted for nobody
	available := v["MemTotal"]*1024 - min(gone, v["MemTotal"]*1024)
	vm := keyed("/proc/vmstat")
	faults, major := vm["pgfault"], vm["pgmajfault"]
	return &stats.MemoryStats{
			Time: t, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working,
			RSSBytes: kib(v["AnonPages"]), PageFaults: &faults, MajorPageFaults: &major, PSI: nodePressure("memory"),
		}, &stats.SwapStats{
			Time: t, SwapAvailableBytes: kib(v["SwapFree"]), SwapUsageBytes: kib(v["SwapTotal"] - v["SwapFree"]),
		}
}

// nodePressure returns what the whole machine waits for (/proc/pressure); nil without PSI.
func nodePressure(what string) *stats.PSIStats {
	p := cgroup.ReadPressure(filepath.Join("/proc/pressure", what))
	if p == nil {
		return nil
	}
	data := func(l cgroup.PressureLine) stats.PSIData {
		return stats.PSIData{Total: uint64(l.Total), Avg10: l.Avg10, Avg60: l.Avg60, Avg300: l.Avg300}
	}
	return &stats.PSIStats{Some: data(p.Some), Full: data(p.Full)}
}

// nodeNetwork returns the machine's interfaces.
func nodeNetwork(t metav1.Time) *stats.NetworkStats { return networkOf("/proc/net", t) }

// networkOf returns the interfaces of a network namespace, by its /proc/net, and names the one with
// the default route.
func networkOf(proc string, t metav1.Time) *stats.NetworkStats {
	data, err := os.ReadFile(filepath.Join(proc, "dev"))
	if err != nil {
		return nil
	}
	main := defaultInterface(proc)
	out := &stats.NetworkStats{Time: t}
	for line := range strings.Lines(string(data)) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 11 || name == "lo" || strings.HasPrefix(name, "veth") {
			continue
		}
		n := func(i int) *uint64 {
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			return &v
		}
		one := stats.InterfaceStats{Name: name, RxBytes: n(0), RxErrors: n(2), TxBytes: n(8), TxErrors: n(10)}
		if name == main {
			out.InterfaceStats = one
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out
}

// defaultInterface returns the interface of the default route, from the file route of /proc/net.
func defaultInterface(proc string) string {
	data, err := os.ReadFile(filepath.Join(proc, "route"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

func processes(t metav1.Time) *stats.RlimitStats {
	var info unix.Sysinfo_t
	data, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil || unix.Sysinfo(&info) != nil {
		return nil
	}
	most, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return nil
	}
	now := int64(info.Procs)
	return &stats.RlimitStats{Time: t, MaxPID: &most, NumOfRunningProcesses: &now}
}

func bootTime(now time.Time) time.Time {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(info.Uptime) * time.Second).Truncate(time.Second)
}
