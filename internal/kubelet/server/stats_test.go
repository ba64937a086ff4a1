package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// oneOfAll is a runtime with one pod that uses one of everything.
type oneOfAll struct{ describes bool }

func num(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func (oneOfAll) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	now := time.Now().UnixNano()
	psi := &runtimeapi.PsiStats{Some: &runtimeapi.PsiData{Total: 5, Avg10: 1.5}, Full: &runtimeapi.PsiData{Total: 3}}
	cpu := &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: num(2e9), Psi: psi}
	mem := &runtimeapi.MemoryUsage{Timestamp: now, WorkingSetBytes: num(1000), UsageBytes: num(1500), RssBytes: num(800), AvailableBytes: num(50), PageFaults: num(7), MajorPageFaults: num(1), Psi: psi}
	return []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "sb", Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu: cpu, Memory: mem, Io: &runtimeapi.IoUsage{Timestamp: now, Psi: psi}, Process: &runtimeapi.ProcessUsage{ProcessCount: num(3)},
			Network: &runtimeapi.NetworkUsage{Timestamp: now, DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: num(10), TxBytes: num(20), RxErrors: num(0), TxErrors: num(0)}},
			Containers: []*runtimeapi.ContainerStats{{
				Attributes: &runtimeapi.ContainerAttributes{Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}, Cpu: cpu, Memory: mem,
				WritableLayer: &runtimeapi.FilesystemUsage{Timestamp: now, UsedBytes: num(4096), InodesUsed: num(2), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}},
				Swap:          &runtimeapi.SwapUsage{Timestamp: now, SwapUsageBytes: num(100), SwapAvailableBytes: num(900)},
			}},
		},
	}}, nil
}

func (oneOfAll) ContainerStats(context.Context, string) (*runtimeapi.ContainerStats, error) {
	return &runtimeapi.ContainerStats{WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: num(5 << 20), InodesUsed: num(50)}}, nil
}

// ListContainers returns the one that is measured, which runs, and one that has just ended.
func (oneOfAll) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	labels := map[string]string{pods.LabelPodUID: "u"}
	return []*runtimeapi.Container{
		{Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Labels: labels, State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		{Id: "c9", Metadata: &runtimeapi.ContainerMetadata{Name: "crashed"}, Labels: labels, State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}, nil
}

func (r oneOfAll) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return []*runtimeapi.PodSandboxMetrics{{PodSandboxId: "sb", ContainerMetrics: []*runtimeapi.ContainerMetrics{{ContainerId: "c1", Metrics: []*runtimeapi.Metric{{
		Name: "container_oom_events_total", MetricType: runtimeapi.MetricType_COUNTER, LabelValues: []string{"c", "p", "ns"}, Value: num(4),
	}}}}}}, nil
}

func (r oneOfAll) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	if !r.describes {
		return nil, grpcstatus.Error(codes.Unimplemented, "unknown method")
	}
	return []*runtimeapi.MetricDescriptor{
		{Name: "container_unused", Help: "nobody has it"},
		{Name: "container_oom_events_total", Help: "Count of out of memory events", LabelKeys: []string{"container", "pod", "namespace"}},
	}, nil
}

func newStats(t *testing.T, describes bool) (*Stats, *fixture) {
	t.Helper()
	f := newFixture(t)
	root := t.TempDir()
	dir := filepath.Join(root, "pods", "u", "volumes", "kubernetes.io~empty-dir", "scratch")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	local, claims := filepath.Join(root, "pods", "u", "volumes", "kubernetes.io~local-volume", "pv"), filepath.Join(root, "pods", "u", "claims")
	bound := `{"version":1,"data":{"Volume":"pv","Claim":"claim","Folder":"kubernetes.io~local-volume","Path":"` + local + `"}}`
	if err := errors.Join(os.MkdirAll(local, 0o755), os.Mkdir(claims, 0o755), os.WriteFile(filepath.Join(claims, "data.json"), []byte(bound), 0o600),
		os.WriteFile(filepath.Join(local, "large"), make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	f.log(1, "a line")
	f.pods.set(func(s *podworker.Snapshot) {
		s.Input.Containers[1].Image, s.Input.Containers[1].Started = "busybox:latest", time.Now()
		s.Pod.Spec.Volumes = []v1.Volume{
			{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
		}
	})
	return &Stats{
		Runtime: oneOfAll{describes}, Pods: f.pods, NodeName: "n1", RootDir: root, PodLogs: f.logs, VolumeAge: time.Minute,
		Machine: v1.NodeSystemInfo{MachineID: "m", BootID: "b", SystemUUID: "s", KernelVersion: "6", OSImage: "Debian"},
	}, f
}

// A container that filled the disk and ended used to be counted nowhere until its pod's worker had
// looked: the runtime no longer measured it, and the worker still took it for running. Another pod
// was evicted in its place.
func TestContainerThatHasJustEndedIsCounted(t *testing.T) {
	s, f := newStats(t, true)
	f.pods.set(func(s *podworker.Snapshot) {
		s.Input.Containers = []podplan.Container{{ID: "c1", Name: "c", State: podplan.Running}, {ID: "c9", Name: "crashed", State: podplan.Running}}
	})
	held, err := s.Disk(t.Context())
	if err != nil || len(held) != 1 {
		t.Fatal(held, err)
	}
	if got := held[0].Containers["crashed"].Bytes; got < 5<<20 || held[0].Bytes < got {
		t.Errorf("it holds %d of the pod's %d bytes", got, held[0].Bytes)
	}
	if got := held[0].Containers["c"].Bytes; got >= 5<<20 {
		t.Errorf("the one that runs is counted twice: %d bytes", got)
	}
}

// joinGroup puts a process into a cgroup.
func joinGroup(t *testing.T, group string, pid int) {
	t.Helper()
	tree, err := cgroup.System()
	if err != nil {
		t.Fatal(err)
	}
	files, err := tree.TaskFiles(group)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		dir, err := tree.UnifiedDir(group)
		if err != nil {
			t.Fatal(err)
		}
		files = []string{filepath.Join(dir, "cgroup.procs")}
	}
	for _, f := range files {
		if err := os.WriteFile(f, fmt.Append(nil, pid), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// countsNoPods is a runtime that measures containers only.
type countsNoPods struct{ oneOfAll }

func (r countsNoPods) ListPodSandboxStats(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	list, err := r.oneOfAll.ListPodSandboxStats(ctx, f)
	list[0].Linux.Cpu, list[0].Linux.Memory = nil, nil
	return list, err
}

func (r oneOfAll) ListContainerStats(ctx context.Context, _ *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	list, err := r.ListPodSandboxStats(ctx, nil)
	stranger := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: "c7"}}
	return append(list[0].Linux.Containers, stranger), err
}

// knowsNoPods is a runtime such as cri-dockerd.
type knowsNoPods struct{ oneOfAll }

func (knowsNoPods) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, grpcstatus.Error(codes.Unimplemented, "not implemented")
}

// TestPodsAreMeasuredOnAnyRuntime: what the runtime does not count, the pod's cgroup does.
func TestPodsAreMeasuredOnAnyRuntime(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	s, _ := newStats(t, true)
	s.Runtime = countsNoPods{}
	group := fmt.Sprintf("/wherry-test-%d", os.Getpid())
	if err := cgroup.Ensure(group, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(group); err != nil {
			t.Error(err)
		}
	})
	s.PodCgroup = func(p *v1.Pod) string {
		if p.UID != "u" {
			t.Errorf("the group of pod %s is read", p.UID)
		}
		return group
	}
	sleep := exec.Command("sleep", "infinity") //nolint:noctx // killed below
	sleep.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }) // before the group is removed
	if n := s.podNetwork(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, time.Now()); n != nil {
		t.Errorf("without a process: %+v", n)
	}
	joinGroup(t, group, sleep.Process.Pid)
	if n := s.podNetwork(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, time.Now()); n == nil || len(n.Interfaces) != 0 {
		t.Errorf("in a namespace of its own: %+v", n)
	}
	sum, err := s.gather(t.Context(), true)
	if err != nil || len(sum.Pods) != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if p := sum.Pods[0]; p.CPU == nil || p.CPU.UsageCoreNanoSeconds == nil || p.Memory == nil || *p.Memory.WorkingSetBytes == 1000 {
		t.Errorf("CPU %+v, memory %+v", p.CPU, p.Memory)
	}
	s.Runtime = knowsNoPods{}
	if sum, err = s.gather(t.Context(), true); err != nil || len(sum.Pods) != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if p := sum.Pods[0]; p.PodRef.UID != "u" || p.CPU == nil || p.Memory == nil || len(p.Containers) != 1 || p.Containers[0].Name != "c" {
		t.Errorf("of containers alone: %+v", p)
	}
	s.Runtime = oneOfAll{}
	if sum, err = s.gather(t.Context(), true); err != nil || *sum.Pods[0].Memory.WorkingSetBytes != 1000 {
		t.Errorf("what the runtime counts is not what is reported: %+v, %v", sum, err)
	}
}

func TestSummaryHasEverything(t *testing.T) {
	s, f := newStats(t, true)
	mux := New(Config{Stats: s}, f.pods, nil).mux
	code, body := answer(t, mux, "GET", "/stats/summary", "")
	var sum stats.Summary
	if err := json.Unmarshal([]byte(body), &sum); code != 200 || err != nil || len(sum.Pods) != 1 {
		t.Fatalf("%d %v %s", code, err, body)
	}
	p, n := sum.Pods[0], sum.Node
	c := p.Containers[0]
	for what, ok := range map[string]bool{
		"pod":                               p.PodRef.Name == "p" && *p.CPU.UsageCoreNanoSeconds == 2e9 && *p.Memory.WorkingSetBytes == 1000 && *p.ProcessStats.ProcessCount == 3,
		"pressure":                          p.CPU.PSI.Some.Avg10 == 1.5 && p.Memory.PSI.Full.Total == 3 && p.IO.PSI.Some.Total == 5,
		"network":                           p.Network.Name == "eth0" && *p.Network.RxBytes == 10 && len(p.Network.Interfaces) == 1,
		"swap":                              *p.Swap.SwapUsageBytes == 100 && *c.Swap.SwapAvailableBytes == 900,
		"rootfs":                            *c.Rootfs.UsedBytes == 4096 && *c.Rootfs.CapacityBytes > 0 && *c.Rootfs.InodesUsed == 2,
		"logs":                              *c.Logs.UsedBytes > 0 && *c.Logs.InodesUsed == 2,
		"volumes":                           len(p.VolumeStats) == 2 && p.VolumeStats[1].Name == "scratch" && p.VolumeStats[0].Name == "data" && p.VolumeStats[0].PVCRef.Name == "claim",
		"a claim is not the pod's own":      *p.EphemeralStorage.UsedBytes < 1<<20,
		"a file with two names counts once": *p.VolumeStats[1].UsedBytes >= 100<<10 && *p.VolumeStats[1].UsedBytes < 150<<10 && *p.VolumeStats[1].InodesUsed == 2,
		"ephemeral storage":                 *p.EphemeralStorage.UsedBytes >= *p.VolumeStats[1].UsedBytes+4096,
		"node":                              n.NodeName == "n1" && *n.CPU.UsageCoreNanoSeconds > 0 && *n.Memory.WorkingSetBytes > 0 && *n.Memory.PageFaults > 0 && n.Swap != nil,
		"node file systems":                 *n.Fs.CapacityBytes > 0 && *n.Runtime.ImageFs.CapacityBytes > 0 && n.Rlimit != nil,
		"kubelet":                           n.SystemContainers[0].Name == "kubelet" && *n.SystemContainers[0].Memory.WorkingSetBytes > 0,
	} {
		if !ok {
			t.Errorf("%s: %s", what, body)
		}
	}
	if n.Network == nil || len(n.Network.Interfaces) == 0 {
		t.Log("a machine without an interface")
	}
	if _, body := answer(t, mux, "GET", "/stats/summary?only_cpu_and_memory=true", ""); strings.Contains(body, "ephemeral") || strings.Contains(body, "rootfs") || !strings.Contains(body, "usageCoreNanoSeconds") {
		t.Errorf("short: %s", body)
	}
	if claims := s.Claims(); len(claims) != 1 || claims[0].PVCRef.Namespace != "ns" {
		t.Errorf("claims: %+v", claims)
	}
}

func TestFoldersAreNotWalkedAgainAtOnce(t *testing.T) {
	s, _ := newStats(t, true)
	dir, now := t.TempDir(), time.Now()
	first := s.measure(dir, now)
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again := s.measure(dir, now.Add(30*time.Second)); again != first {
		t.Errorf("%+v, then %+v", first, again)
	}
	if later := s.measure(dir, now.Add(time.Minute)); later.inodes != first.inodes+1 {
		t.Errorf("%+v, later %+v", first, later)
	}
}

func TestResourceMetrics(t *testing.T) {
	s, f := newStats(t, true)
	code, body := answer(t, New(Config{Stats: s}, f.pods, nil).mux, "GET", "/metrics/resource", "")
	for _, want := range []string{
		"# TYPE container_cpu_usage_seconds_total counter\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 2 ",
		"container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 1000 ", "container_start_time_seconds{container=\"c\"",
		"container_swap_usage_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 100 ", "container_swap_limit_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 1000 ",
		"pod_swap_usage_bytes{namespace=\"ns\",pod=\"p\"} 100 ", "node_swap_usage_bytes ", "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 2 ",
		"pod_memory_working_set_bytes{namespace=\"ns\",pod=\"p\"} 1000 ", "node_memory_working_set_bytes ", "resource_scrape_error 0\n",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("no %q: %d %s", want, code, body)
		}
	}
}

func TestCadvisorMetrics(t *testing.T) {
	for name, tc := range map[string]struct {
		describes bool
		want      []string
	}{
		"described by the runtime": {true, []string{
			"# HELP container_oom_events_total Count of out of memory events\n# TYPE container_oom_events_total counter\ncontainer_oom_events_total{container=\"c\",pod=\"p\",namespace=\"ns\"} 4\n",
		}},
		"derived from statistics": {false, []string{
			"container_cpu_usage_seconds_total{container=\"c\",id=\"c1\",image=\"busybox:latest\",name=\"c1\",namespace=\"ns\",pod=\"p\"} 2\n",
			"container_memory_working_set_bytes{container=\"c\",id=\"c1\"", "container_memory_rss{container=\"c\"", "container_fs_usage_bytes{container=\"c\"",
			"container_network_receive_bytes_total{container=\"\",id=\"\",image=\"\",name=\"\",namespace=\"ns\",pod=\"p\",interface=\"eth0\"} 10\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := newStats(t, tc.describes)
			code, body := answer(t, New(Config{Stats: s}, f.pods, nil).mux, "GET", "/metrics/cadvisor", "")
			for _, want := range append(tc.want, "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} ", "machine_memory_bytes{", "cadvisor_version_info{") {
				if code != 200 || !strings.Contains(body, want) {
					t.Errorf("no %q: %d %s", want, code, body)
				}
			}
			if strings.Contains(body, "container_unused") {
				t.Error("a family without a value")
			}
		})
	}
}

// The summary counted files that were used just now as free memory, and evictions did not: a node with gigabytes to spare by
// the one was short of memory by the other.
func TestMemoryOfTheNodeIsWhatEvictionDecidesBy(t *testing.T) {
	total, huge := keyed("/proc/meminfo")["MemTotal"]*1024, keyed("/proc/meminfo")["Hugetlb"]*1024
	m, _ := nodeMemory(metav1.Now(), func() (uint64, uint64, error) { return 700 << 20, 200 << 20, nil })
	if *m.UsageBytes != 700<<20 || *m.WorkingSetBytes != 500<<20 || *m.AvailableBytes != total-huge-500<<20 {
		t.Errorf("%d used, %d of it at work, %d of %d free", *m.UsageBytes, *m.WorkingSetBytes, *m.AvailableBytes, total)
	}
	for _, broken := range []func() (uint64, uint64, error){
		func() (uint64, uint64, error) { return 0, 0, errors.New("no cgroups") },
		func() (uint64, uint64, error) { return total + 1, 0, nil }, // read at another moment
		func() (uint64, uint64, error) { return 1, 2, nil },
	} {
		if m, _ := nodeMemory(metav1.Now(), broken); *m.AvailableBytes > total || *m.WorkingSetBytes > *m.UsageBytes {
			t.Errorf("%d used, %d of it at work, %d of %d free", *m.UsageBytes, *m.WorkingSetBytes, *m.AvailableBytes, total)
		}
	}
}
