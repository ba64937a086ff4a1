package cri

import (
	"slices"
	"strings"
	"testing"
)

// TestMetricsOfARunningPod: every metric that is described has a value, and a value for each of
// its labels.
func TestMetricsOfARunningPod(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	cfg := containerConfig("busy", "sh", "-c", "exec 9</etc/passwd; while :; do :; done")
	cfg.Linux.Resources.CpuQuota, cfg.Linux.Resources.CpuPeriod = 50000, 100000
	cfg.Linux.Resources.MemoryLimitInBytes = 64 << 20
	id := p.start(cfg)
	n.exec(id, "sh", "-c", "dd if=/dev/zero of=/file bs=1024 count=64 2>/dev/null")
	descriptors, err := n.run.ListMetricDescriptors(t.Context())
	n.must(err)
	values := map[string]uint64{}
	labels := map[string][]string{}
	look := func() bool {
		pods, err := n.run.ListPodSandboxMetrics(t.Context())
		n.must(err)
		if len(pods) != 1 || pods[0].GetPodSandboxId() != p.id || len(pods[0].GetContainerMetrics()) != 1 ||
			pods[0].GetContainerMetrics()[0].GetContainerId() != id {
			t.Fatalf("metrics are of %v", pods)
		}
		for _, m := range slices.Concat(pods[0].GetMetrics(), pods[0].GetContainerMetrics()[0].GetMetrics()) {
			values[m.GetName()] = m.GetValue().GetValue()
			labels[m.GetName()] = m.GetLabelValues()
		}
		return values["container_processes"] == 1
	}
	waitFor(t, "the command and its runtime to be gone", look)
	mayLack := []string{"container_hugetlb", "container_blkio", "container_fs_reads", "container_fs_writes", "container_pressure"}
	for _, d := range descriptors {
		got, ok := labels[d.GetName()]
		if !ok && slices.ContainsFunc(mayLack, func(s string) bool { return strings.HasPrefix(d.GetName(), s) }) {
			continue // needs a disk or huge pages
		}
		if !ok {
			t.Errorf("%s has no value", d.GetName())
		} else if len(got) != len(d.GetLabelKeys()) {
			t.Errorf("%s: labels %v for keys %v", d.GetName(), got, d.GetLabelKeys())
		}
	}
	for name, want := range map[string]uint64{
		"container_spec_memory_limit_bytes": 64 << 20, "container_spec_cpu_quota": 50000, "container_spec_cpu_period": 100000,
		"container_processes": 1, "container_threads": 1,
	} {
		if values[name] != want {
			t.Errorf("%s is %d, want %d", name, values[name], want)
		}
	}
	for _, name := range []string{"container_fs_usage_bytes", "container_memory_usage_bytes", "container_network_receive_bytes_total", "container_file_descriptors"} {
		if values[name] == 0 {
			t.Errorf("%s is 0", name)
		}
	}
	if got := labels["container_processes"]; got[0] != "busy" || got[3] != id || got[4] != "default" || got[5] != p.cfg.GetMetadata().GetName() {
		t.Errorf("labels %v", got)
	}
}
