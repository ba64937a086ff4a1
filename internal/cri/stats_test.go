package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/disk"
)

// counters reads the files of a process's cgroup with which the statistics must agree, the way an
// administrator would.
type counters struct {
	cpu, rss, usage, inactive uint64
}

func (n *node) counters(pid int) counters {
	n.t.Helper()
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	n.must(err)
	number := func(path string) uint64 {
		doc, err := os.ReadFile(path)
		n.must(err)
		v, err := strconv.ParseUint(strings.TrimSpace(string(doc)), 10, 64)
		n.must(err)
		return v
	}
	word := func(path, key string) uint64 {
		doc, err := os.ReadFile(path)
		n.must(err)
		for line := range strings.Lines(string(doc)) {
			if f := strings.Fields(line); f[0] == key {
				v, err := strconv.ParseUint(f[1], 10, 64)
				n.must(err)
				return v
			}
		}
		n.t.Fatalf("%s has no %s", path, key)
		return 0
	}
	dirs := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(string(doc))) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for c := range strings.SplitSeq(f[1], ",") {
			dirs[c] = f[2]
		}
	}
	mode, err := cgroup.Version()
	n.must(err)
	if mode == cgroup.V2 {
		dir := filepath.Join("/sys/fs/cgroup", dirs[""])
		return counters{word(dir+"/cpu.stat", "usage_usec") * 1000, word(dir+"/memory.stat", "anon"), number(dir + "/memory.current"), word(dir+"/memory.stat", "inactive_file")}
	}
	mem := filepath.Join("/sys/fs/cgroup/memory", dirs["memory"])
	return counters{
		number(filepath.Join("/sys/fs/cgroup/cpuacct", dirs["cpuacct"], "cpuacct.usage")),
		word(mem+"/memory.stat", "total_rss"), number(mem + "/memory.usage_in_bytes"), word(mem+"/memory.stat", "total_inactive_file"),
	}
}

// between reports whether a value lies between two others, give or take a slack. Memory also
// falls: what an exec used is released after it exits.
func between(v *runtimeapi.UInt64Value, a, b, slack uint64) bool {
	return v != nil && v.Value+slack >= min(a, b) && v.Value <= max(a, b)+slack
}

// TestStatsOfAKnownLoad compares the statistics with the kernel's files, read before
// and after, and with what the container is known to use.
func TestStatsOfAKnownLoad(t *testing.T) {
	const mib = 1 << 20
	n := newNode(t)
	p := n.pod()
	cfg := containerConfig("c", "sh", "-c", `
		awk 'BEGIN { s = "x"; while (length(s) < 16777216) s = s s; system("touch /ready; sleep 1000") }' &
		head -c 8388608 /dev/zero > /cached
		mkdir /many; for i in 1 2 3 4 5 6 7 8 9 10; do echo x > /many/$i; done
		until [ -e /ready ]; do sleep 0.02; done
		for i in $(seq 400000); do :; done
		touch /done; sleep 1000`)
	cfg.Linux.Resources.MemoryLimitInBytes = 256 * mib
	id := p.start(cfg)
	n.exec(id, "sh", "-c", "until [ -e /done ]; do sleep 0.02; done")
	pid := n.containers[id].PID()

	before := n.counters(pid)
	st, err := n.run.ContainerStats(t.Context(), id)
	n.must(err)
	after := n.counters(pid)

	if !between(st.Cpu.UsageCoreNanoSeconds, before.cpu, after.cpu, 0) || before.cpu < 50e6 {
		t.Errorf("CPU %v, the kernel counts %d to %d", st.Cpu.UsageCoreNanoSeconds, before.cpu, after.cpu)
	}
	if !between(st.Memory.RssBytes, before.rss, after.rss, mib) || before.rss < 16*mib {
		t.Errorf("RSS %v, the kernel counts %d to %d", st.Memory.RssBytes, before.rss, after.rss)
	}
	if !between(st.Memory.UsageBytes, before.usage, after.usage, mib) || before.usage < 24*mib {
		t.Errorf("usage %v, the kernel counts %d to %d", st.Memory.UsageBytes, before.usage, after.usage)
	}
	// As in the kubelet: what the kernel can drop at once does not count.
	want := before.usage - before.inactive
	if !between(st.Memory.WorkingSetBytes, want, want, 2*mib) || before.inactive < 4*mib {
		t.Errorf("working set %v, want %d; inactive %d", st.Memory.WorkingSetBytes, want, before.inactive)
	}
	if got := st.Memory.AvailableBytes.GetValue() + st.Memory.WorkingSetBytes.GetValue(); got != 256*mib {
		t.Errorf("available and working set are %d together", got)
	}
	if st.Memory.PageFaults.GetValue() < 16*mib/4096/512 || st.Cpu.Timestamp == 0 || st.Memory.Timestamp == 0 || st.Swap.GetTimestamp() == 0 || st.Io.GetTimestamp() == 0 {
		t.Errorf("faults %v, times %d %d %v %v", st.Memory.PageFaults, st.Cpu.Timestamp, st.Memory.Timestamp, st.Swap, st.Io)
	}
	if !between(st.WritableLayer.UsedBytes, 8*mib, 9*mib, 0) || !between(st.WritableLayer.InodesUsed, 15, 25, 0) {
		t.Errorf("writable layer %v", st.WritableLayer)
	}
	n.podStatsAgree(p, id, st)
}

// podStatsAgree checks the pod's statistics against those of its only container.
func (n *node) podStatsAgree(p *pod, id string, st *runtimeapi.ContainerStats) {
	n.t.Helper()
	var linux *runtimeapi.LinuxPodSandboxStats
	look := func() {
		pods, err := n.run.ListPodSandboxStats(n.t.Context(), &runtimeapi.PodSandboxStatsFilter{LabelSelector: p.cfg.Labels})
		n.must(err)
		if len(pods) != 1 || pods[0].Attributes.Id != p.id || len(pods[0].Linux.Containers) != 1 {
			n.t.Fatalf("pods %v", pods)
		}
		linux = pods[0].Linux
	}
	// Three: the shell that became sleep, awk and its sleep. The command that waited for them may
	// still be there.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if look(); linux.Process.ProcessCount.GetValue() == 3 || time.Now().After(deadline) {
			break
		}
	}
	if got := linux.Containers[0].Attributes; got.Id != id || got.Metadata.Name != "c" {
		n.t.Errorf("attributes %v", got)
	}
	if linux.Process.ProcessCount.GetValue() != 3 { // the shell that became sleep, awk and its sleep
		n.t.Errorf("%v processes: %s", linux.Process.ProcessCount, n.exec(id, "ps"))
	}
	if linux.Cpu.UsageCoreNanoSeconds.GetValue() < st.Cpu.UsageCoreNanoSeconds.GetValue() || linux.Memory.WorkingSetBytes.GetValue() < 16<<20 {
		n.t.Errorf("pod %v, %v", linux.Cpu, linux.Memory)
	}
}

// TestNetworkStats sends a known amount from pod to pod.
func TestNetworkStats(t *testing.T) {
	const size = 4 << 20
	n := newNode(t)
	to := n.pod()
	from := n.pod()
	server := to.sh("s", "mkfifo /f; sleep 1000 > /f & nc -l -p 9000 < /f > /tmp/got; touch /done; sleep 1000")
	from.sh("c", fmt.Sprintf("until head -c %d /dev/zero | nc %s 9000; do sleep 0.05; done; sleep 1000", size, n.podIP(to.id)))
	n.exec(server, "sh", "-c", "until [ -e /done ]; do sleep 0.05; done")
	for id, in := range map[string]bool{to.id: true, from.id: false} {
		st, err := n.run.PodSandboxStats(t.Context(), id)
		n.must(err)
		eth := st.Linux.Network.DefaultInterface
		many, few := eth.RxBytes, eth.TxBytes
		if !in {
			many, few = few, many
		}
		if eth.Name != "eth0" || !between(many, size, size+size/4, 0) || few.GetValue() > size/4 || eth.RxErrors.GetValue()+eth.TxErrors.GetValue() != 0 {
			t.Errorf("interface %v", eth)
		}
	}
	host := n.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	})
	st, err := n.run.PodSandboxStats(t.Context(), host.id)
	n.must(err)
	if st.Linux.Network != nil {
		t.Errorf("a pod on the host's network has the host's counters: %v", st.Linux.Network)
	}
}

func TestPressureIsReportedOnV2(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.sh("c", "while :; do :; done")
	st, err := n.run.ContainerStats(t.Context(), id)
	n.must(err)
	pod, err := n.run.PodSandboxStats(t.Context(), p.id)
	n.must(err)
	got := []bool{st.Cpu.Psi != nil, st.Memory.Psi != nil, st.Io.Psi != nil, pod.Linux.Cpu.Psi != nil, pod.Linux.Memory.Psi != nil, pod.Linux.Io.Psi != nil}
	want := n.host.CgroupV2 && disk.Exists("/proc/pressure/cpu")
	for _, g := range got {
		if g != want {
			t.Fatalf("pressure of CPU, memory and IO, of container and pod: %v; want %v", got, want)
		}
	}
}
