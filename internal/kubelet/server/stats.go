package server

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podworker"
)

// StatsRuntime is the part of the CRI that measures.
type StatsRuntime interface {
	ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error)
	ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error)
	ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error)
}

// Stats gathers statistics when somebody asks, and never otherwise.
type Stats struct {
	Runtime  StatsRuntime
	Pods     Pods
	NodeName string
	RootDir  string

	mu   sync.Mutex
	last map[string]sample // by "node" or container ID, for rates
}

// sample of a CPU counter.
type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
}

// rate returns nanocores since the sample before. Two requests at nearly the same
// time get the same answer.
func (s *Stats) rate(key string, at time.Time, nanos uint64) *uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]sample{}
	}
	old, ok := s.last[key]
	passed := at.Sub(old.at)
	if ok && passed < time.Second {
		return &old.rate
	}
	now := sample{at: at, nanos: nanos}
	if ok && nanos >= old.nanos {
		now.rate = uint64(float64(nanos-old.nanos) / passed.Seconds())
	}
	s.last[key] = now
	if !ok {
		return nil
	}
	return &now.rate
}

func (s *Stats) summary(w http.ResponseWriter, r *http.Request) {
	sum, err := s.gather(r.Context(), flag(r.URL.Query(), "only_cpu_and_memory"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, sum)
}

func (s *Stats) gather(ctx context.Context, short bool) (*stats.Summary, error) {
	list, err := s.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	sum := &stats.Summary{Node: s.node(now, short), Pods: []stats.PodStats{}}
	known := map[string]podworker.Snapshot{}
	for _, p := range s.Pods.List() {
		known[string(p.Pod.UID)] = p
	}
	for _, ps := range list {
		uid := ps.GetAttributes().GetMetadata().GetUid()
		p, ok := known[uid]
		if uid == "" || !ok {
			continue
		}
		sum.Pods = append(sum.Pods, s.pod(ps, p, short))
	}
	slices.SortFunc(sum.Pods, func(a, b stats.PodStats) int {
		return strings.Compare(a.PodRef.Namespace+"/"+a.PodRef.Name, b.PodRef.Namespace+"/"+b.PodRef.Name)
	})
	s.forget(sum)
	return sum, nil
}

// forget drops the samples of what is gone.
func (s *Stats) forget(sum *stats.Summary) {
	keep := map[string]bool{"node": true}
	for i := range sum.Pods {
		keep[sum.Pods[i].PodRef.UID] = true
		for j := range sum.Pods[i].Containers {
			keep[sum.Pods[i].PodRef.UID+"/"+sum.Pods[i].Containers[j].Name] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.last {
		if !keep[key] {
			delete(s.last, key)
		}
	}
}

func (s *Stats) pod(ps *runtimeapi.PodSandboxStats, p podworker.Snapshot, short bool) stats.PodStats {
	m := ps.Attributes.Metadata
	out := stats.PodStats{
		PodRef:     stats.PodReference{Name: m.Name, Namespace: m.Namespace, UID: m.Uid},
		Containers: []stats.ContainerStats{},
		CPU:        s.cpu(m.Uid, ps.GetLinux().GetCpu()),
		Memory:     memory(ps.GetLinux().GetMemory()),
	}
	if st := p.Status.StartTime; st != nil {
		out.StartTime = *st
	}
	for _, c := range ps.GetLinux().GetContainers() {
		out.Containers = append(out.Containers, s.container(m.Uid, c, p, short))
	}
	if short {
		return out
	}
	if n := ps.GetLinux().GetNetwork(); n != nil {
		out.Network = network(n)
	}
	if pr := ps.GetLinux().GetProcess(); pr != nil {
		out.ProcessStats = &stats.ProcessStats{ProcessCount: value(pr.ProcessCount)}
	}
	return out
}

func (s *Stats) container(uid string, c *runtimeapi.ContainerStats, p podworker.Snapshot, short bool) stats.ContainerStats {
	name := c.GetAttributes().GetMetadata().GetName()
	if name == "" {
		name = c.GetAttributes().GetLabels()[podconfig.LabelContainerName]
	}
	out := stats.ContainerStats{Name: name, CPU: s.cpu(uid+"/"+name, c.Cpu), Memory: memory(c.Memory)}
	for _, o := range p.Input.Containers {
		if o.ID == c.GetAttributes().GetId() {
			out.StartTime = metav1.NewTime(o.Started)
		}
	}
	if l := c.WritableLayer; l != nil && !short {
		out.Rootfs = &stats.FsStats{Time: stamp(l.Timestamp), UsedBytes: value(l.UsedBytes), InodesUsed: value(l.InodesUsed)}
	}
	if sw := c.Swap; sw != nil {
		out.Swap = &stats.SwapStats{Time: stamp(sw.Timestamp), SwapAvailableBytes: value(sw.SwapAvailableBytes), SwapUsageBytes: value(sw.SwapUsageBytes)}
	}
	return out
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.Value
	return &n
}

func stamp(nanos int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanos)) }

func (s *Stats) cpu(key string, c *runtimeapi.CpuUsage) *stats.CPUStats {
	if c == nil {
		return nil
	}
	out := &stats.CPUStats{Time: stamp(c.Timestamp), UsageCoreNanoSeconds: value(c.UsageCoreNanoSeconds), UsageNanoCores: value(c.UsageNanoCores)}
	if out.UsageNanoCores == nil && out.UsageCoreNanoSeconds != nil {
		out.UsageNanoCores = s.rate(key, out.Time.Time, *out.UsageCoreNanoSeconds)
	}
	return out
}

func memory(m *runtimeapi.MemoryUsage) *stats.MemoryStats {
	if m == nil {
		return nil
	}
	return &stats.MemoryStats{
		Time: stamp(m.Timestamp), AvailableBytes: value(m.AvailableBytes), UsageBytes: value(m.UsageBytes),
		WorkingSetBytes: value(m.WorkingSetBytes), RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults),
	}
}

func network(n *runtimeapi.NetworkUsage) *stats.NetworkStats {
	one := func(i *runtimeapi.NetworkInterfaceUsage) stats.InterfaceStats {
		return stats.InterfaceStats{
			Name: i.GetName(), RxBytes: value(i.GetRxBytes()), RxErrors: value(i.GetRxErrors()), TxBytes: value(i.GetTxBytes()), TxErrors: value(i.GetTxErrors()),
		}
	}
	out := &stats.NetworkStats{Time: stamp(n.Timestamp), InterfaceStats: one(n.DefaultInterface)}
	for _, i := range n.Interfaces {
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}

// node measures the machine itself.
func (s *Stats) node(now time.Time, short bool) stats.NodeStats {
	t := metav1.NewTime(now)
	out := stats.NodeStats{NodeName: s.NodeName, StartTime: metav1.NewTime(bootTime(now))}
	if busy, ok := cpuBusy(); ok {
		out.CPU = &stats.CPUStats{Time: t, UsageCoreNanoSeconds: &busy, UsageNanoCores: s.rate("node", now, busy)}
	}
	out.Memory = nodeMemory(t)
	if short {
		return out
	}
	if fs := fsStats(s.RootDir, t); fs != nil {
		out.Fs = fs
		out.Runtime = &stats.RuntimeStats{ImageFs: fs, ContainerFs: fs}
	}
	out.Rlimit = processes(t)
	return out
}

// cpuBusy is the time that all CPUs were not idle, from /proc/stat.
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
	const tick = uint64(time.Second) / 100 // USER_HZ
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
	return busy * tick, true
}

func nodeMemory(t metav1.Time) *stats.MemoryStats {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	v := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		if f := strings.Fields(rest); len(f) > 0 {
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
				v[name] = n * 1024
			}
		}
	}
	available, usage := v["MemAvailable"], v["MemTotal"]-v["MemFree"]
	working, rss := v["MemTotal"]-min(available, v["MemTotal"]), v["AnonPages"]
	return &stats.MemoryStats{Time: t, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss}
}

func fsStats(dir string, t metav1.Time) *stats.FsStats {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil
	}
	size := uint64(st.Bsize)
	available, capacity, used := st.Bavail*size, st.Blocks*size, (st.Blocks-st.Bfree)*size
	inodes, free := st.Files, st.Ffree
	inUse := inodes - free
	return &stats.FsStats{
		Time: t, AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used, InodesFree: &free, Inodes: &inodes, InodesUsed: &inUse,
	}
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
