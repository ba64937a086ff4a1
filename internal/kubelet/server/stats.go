package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podworker"
)

// StatsRuntime is the part of the CRI that returns statistics.
type StatsRuntime interface {
	ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error)
	ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
	ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error)
	ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error)
}

// StatsImages reports where images and containers are stored.
type StatsImages interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Stats collects statistics on request only.
type Stats struct {
	Runtime  StatsRuntime
	Images   StatsImages // nil if unknown
	Pods     Pods
	NodeName string
	RootDir  string
	PodLogs  string
	// PodsCgroup is the group that contains all pods; empty if there is none.
	PodsCgroup string
	// PodCgroup is a pod's group; nil if there is none.
	PodCgroup func(*v1.Pod) string
	// VolumeAge is how old the measured size of a directory may be.
	VolumeAge time.Duration
	// OwnOnly leaves out volumes that are not a pod's own.
	OwnOnly bool
	// DriverUsage, if not nil, asks the driver of the volume at a path, volume.ErrNoUsage if it has none that knows. Those
	// who ask at the same time share the answer.
	DriverUsage func(path string) ([]*csi.VolumeUsage, error)
	// Machine identifies the machine in metrics.
	Machine v1.NodeSystemInfo

	mu   sync.Mutex
	last map[string]sample // by "node" or container ID, for rates
	dirs map[string]folder

	asked singleflight.Group // file systems that may not answer, by directory
}

// sample is one reading of a CPU counter.
type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
}

// rate returns nanocores since the previous sample. Two requests at nearly the same time get the
// same answer.
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
	sum, err := s.gather(r.Context(), on(r.URL.Query(), "only_cpu_and_memory"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, sum)
}

// gather measures everything; short leaves out what takes more than reading a few counters.
func (s *Stats) gather(ctx context.Context, short bool) (*stats.Summary, error) {
	list, err := s.measured(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	sum := &stats.Summary{Node: s.node(ctx, now, short), Pods: []stats.PodStats{}}
	known := map[string]*podworker.Snapshot{}
	for _, p := range s.Pods.List() {
		known[string(p.Pod.UID)] = p
	}
	for _, ps := range list {
		uid := ps.GetAttributes().GetMetadata().GetUid()
		p, ok := known[uid]
		if uid == "" || !ok {
			continue
		}
		sum.Pods = append(sum.Pods, s.pod(ps, p, now, short))
	}
	slices.SortFunc(sum.Pods, func(a, b stats.PodStats) int {
		return strings.Compare(a.PodRef.Namespace+"/"+a.PodRef.Name, b.PodRef.Namespace+"/"+b.PodRef.Name)
	})
	s.forget(sum)
	return sum, nil
}

// forget drops the samples of what is gone.
func (s *Stats) forget(sum *stats.Summary) {
	keep := map[string]bool{"node": true, stats.SystemContainerKubelet: true, stats.SystemContainerPods: true}
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

func (s *Stats) pod(ps *runtimeapi.PodSandboxStats, p *podworker.Snapshot, now time.Time, short bool) stats.PodStats {
	m, linux := ps.Attributes.Metadata, ps.GetLinux()
	out := stats.PodStats{
		PodRef:     stats.PodReference{Name: m.Name, Namespace: m.Namespace, UID: m.Uid},
		Containers: []stats.ContainerStats{},
		CPU:        s.cpu(m.Uid, linux.GetCpu()),
		Memory:     memory(linux.GetMemory()),
		IO:         blockIO(linux.GetIo()),
	}
	s.complete(&out, p.Pod)
	for _, sb := range p.Input.Sandboxes {
		if sb.Ready {
			out.StartTime = metav1.NewTime(sb.Created)
		}
	}
	if st := p.Status.StartTime; out.StartTime.IsZero() && st != nil {
		out.StartTime = *st
	}
	for _, c := range linux.GetContainers() {
		out.Containers = append(out.Containers, s.container(m.Uid, c, p, now, short))
	}
	out.Swap = podSwap(out.Containers)
	if short {
		return out
	}
	if n := linux.GetNetwork(); n != nil {
		out.Network = network(n)
	} else {
		out.Network = s.podNetwork(p.Pod, now)
	}
	if pr := linux.GetProcess(); pr != nil {
		out.ProcessStats = &stats.ProcessStats{ProcessCount: value(pr.ProcessCount)}
	}
	var onDisk []*stats.FsStats
	out.VolumeStats, onDisk = s.volumes(p.Pod, now)
	out.EphemeralStorage = s.ephemeral(p.Pod, &out, onDisk, now)
	return out
}

func (s *Stats) container(uid string, c *runtimeapi.ContainerStats, p *podworker.Snapshot, now time.Time, short bool) stats.ContainerStats {
	name := c.GetAttributes().GetMetadata().GetName()
	if name == "" {
		name = c.GetAttributes().GetLabels()[pods.LabelContainerName]
	}
	out := stats.ContainerStats{Name: name, CPU: s.cpu(uid+"/"+name, c.Cpu), Memory: memory(c.Memory), IO: blockIO(c.Io)}
	for _, o := range p.Input.Containers {
		if o.ID == c.GetAttributes().GetId() {
			out.StartTime = metav1.NewTime(o.Started)
		}
	}
	if sw := c.Swap; sw != nil {
		out.Swap = &stats.SwapStats{Time: stamp(sw.Timestamp), SwapAvailableBytes: value(sw.SwapAvailableBytes), SwapUsageBytes: value(sw.SwapUsageBytes)}
	}
	if short {
		return out
	}
	if l := c.WritableLayer; l != nil {
		where := l.GetFsId().GetMountpoint()
		if where == "" {
			where = s.RootDir
		}
		if out.Rootfs = fsStats(where, stamp(l.Timestamp)); out.Rootfs == nil {
			out.Rootfs = &stats.FsStats{Time: stamp(l.Timestamp)}
		}
		out.Rootfs.UsedBytes, out.Rootfs.InodesUsed = value(l.UsedBytes), value(l.InodesUsed)
	}
	out.Logs = s.logs(p.Pod, name, now)
	return out
}

// podSwap adds up what the containers have swapped out: the CRI reports no swap for pods.
func podSwap(containers []stats.ContainerStats) *stats.SwapStats {
	var sum *stats.SwapStats
	for i := range containers {
		sw := containers[i].Swap
		if sw == nil {
			continue
		}
		if sum == nil {
			sum = &stats.SwapStats{Time: sw.Time, SwapUsageBytes: new(uint64), SwapAvailableBytes: new(uint64)}
		}
		if sw.SwapUsageBytes != nil {
			*sum.SwapUsageBytes += *sw.SwapUsageBytes
		}
		if sw.SwapAvailableBytes != nil {
			*sum.SwapAvailableBytes += *sw.SwapAvailableBytes
		}
	}
	return sum
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
	out := &stats.CPUStats{
		Time: stamp(c.Timestamp), UsageCoreNanoSeconds: value(c.UsageCoreNanoSeconds), UsageNanoCores: value(c.UsageNanoCores), PSI: pressure(c.Psi),
	}
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
		PSI: pressure(m.Psi),
	}
}

// blockIO contains only the kernel's pressure stall information for I/O (PSI).
func blockIO(io *runtimeapi.IoUsage) *stats.IOStats {
	if io.GetPsi() == nil {
		return nil
	}
	return &stats.IOStats{Time: stamp(io.Timestamp), PSI: pressure(io.Psi)}
}

func pressure(p *runtimeapi.PsiStats) *stats.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d *runtimeapi.PsiData) stats.PSIData {
		return stats.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &stats.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

func network(n *runtimeapi.NetworkUsage) *stats.NetworkStats {
	one := func(i *runtimeapi.NetworkInterfaceUsage) stats.InterfaceStats {
		return stats.InterfaceStats{
			Name: i.GetName(), RxBytes: value(i.GetRxBytes()), RxErrors: value(i.GetRxErrors()), TxBytes: value(i.GetTxBytes()), TxErrors: value(i.GetTxErrors()),
		}
	}
	out := &stats.NetworkStats{Time: stamp(n.Timestamp), InterfaceStats: one(n.DefaultInterface)}
	if n.DefaultInterface != nil {
		out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	}
	for _, i := range n.Interfaces {
		out.Interfaces = append(out.Interfaces, one(i))
	}
	return out
}
