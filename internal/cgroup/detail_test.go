package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestDetailsOnThisMachine(t *testing.T) {
	path := group(t) + "/a"
	res := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
		CPU:    &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(20000)), Period: new(uint64(100000))},
		Pids:   &specs.LinuxPids{Limit: new(int64(77))},
	}
	if err := Ensure(path, res); err != nil {
		t.Fatal(err)
	}
	tree, err := System()
	if err != nil {
		t.Fatal(err)
	}
	child := sleeper(t, tree, path)
	d, err := ReadDetails(path)
	if err != nil {
		t.Fatal(err)
	}
	if d.Quota != 20000 || d.Period != 100000 || d.Max != 77 || d.MemoryLimit != 64<<20 || d.Shares < 500 || d.Shares > 525 {
		t.Errorf("limits: %+v", d)
	}
	if !slices.Equal(d.PIDs, []int{child.Process.Pid}) {
		t.Errorf("processes %v, want %d", d.PIDs, child.Process.Pid)
	}
}

// TestDetailsV2 reads files as a kernel with the unified hierarchy has them.
func TestDetailsV2(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 9\nuser_usec 4000000\nsystem_usec 2000000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 1000000\n",
		"cpu.max":  "max 100000\n", "cpu.weight": "100\n",
		"memory.stat": "anon 1\nfile 22\nfile_mapped 11\nkernel 33\n", "memory.events": "low 0\nhigh 0\nmax 5\noom 0\noom_kill 0\n",
		"memory.peak": "44\n", "memory.low": "0\n", "memory.swap.max": "max\n", "pids.max": "max\n",
		"io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n253:1 \n", "hugetlb.2MB.current": "0\n", "hugetlb.2MB.rsvd.current": "9\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got Details
	if err := got.readV2(dir); err != nil {
		t.Fatal(err)
	}
	want := Details{
		User: 4 * time.Second, System: 2 * time.Second, Throttled: time.Second, Periods: 7, ThrottledCount: 3,
		Cache: 22, MappedFile: 11, Kernel: 33, MaxUsage: 44, LimitHits: 5, Shares: 1024, Period: 100000,
		Huge: []HugePages{{Size: "2MB"}}, Disks: []DiskIO{{8, 0, 1, 2, 3, 4}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
