package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// group returns a unique group path, and removes what the test leaves in it.
func group(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	root := fmt.Sprintf("/wherry-test-%d-%d", os.Getpid(), time.Now().UnixNano()%1e6)
	t.Cleanup(func() {
		if err := Kill(root); err != nil {
			t.Error(err)
		}
		if err := Remove(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

// sleeper starts a process inside the group.
func sleeper(t *testing.T, tree *Tree, path string) *exec.Cmd {
	t.Helper()
	files, err := tree.TaskFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	if tree.Mode() == V2 {
		dir, err := tree.UnifiedDir(path)
		if err != nil {
			t.Fatal(err)
		}
		files = []string{filepath.Join(dir, "cgroup.procs")}
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
		`for f in "$@"; do echo 0 > "$f" || exit 3; done; echo ready; exec sleep 600`, "sh")
	cmd.Args = append(cmd.Args, files...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil {
		t.Fatalf("the process did not get into its group: %v", err)
	}
	return cmd
}

func TestLimitsOnThisMachine(t *testing.T) {
	root := group(t)
	path := root + "/pods/a"
	res := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
		CPU:    &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(20000)), Period: new(uint64(100000))},
		Pids:   &specs.LinuxPids{Limit: new(int64(77))},
	}
	for range 2 { // the second time, everything exists already
		if err := Ensure(path, res); err != nil {
			t.Fatal(err)
		}
	}
	s, err := ReadStats(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.MemoryLimit != 64<<20 {
		t.Errorf("memory limit %d, want 64 MiB", s.MemoryLimit)
	}
	res.Memory.Limit = new(int64(128 << 20))
	if err := Update(path, res); err != nil {
		t.Fatal(err)
	}
	if s, err = ReadStats(path); err != nil || s.MemoryLimit != 128<<20 {
		t.Errorf("after Update: limit %d, %v", s.MemoryLimit, err)
	}
	if err := Remove(root); err != nil {
		t.Fatal(err)
	}
	if Exists(path) || Exists(root) {
		t.Error("the group is still there after Remove")
	}
	if err := Update(path, res); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Update of a missing group: %v, want not exist", err)
	}
}

func TestKillAndRemove(t *testing.T) {
	root := group(t)
	tree, err := System()
	if err != nil {
		t.Fatal(err)
	}
	child := root + "/a/b"
	if err := Ensure(child, nil); err != nil {
		t.Fatal(err)
	}
	cmd := sleeper(t, tree, child)
	pids, err := Procs(root)
	if err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Fatalf("Procs = %v, %v; want [%d]", pids, err, cmd.Process.Pid)
	}
	var busy *BusyError
	if err := tree.removeWithin(root, time.Millisecond); !errors.As(err, &busy) {
		t.Errorf("Remove of a busy group: %v, want BusyError", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := Kill(root); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a process that was to be killed ended well")
	}
	if err := Remove(root); err != nil {
		t.Fatal(err)
	}
	if err := Kill(root); err != nil {
		t.Errorf("Kill of a missing group: %v", err)
	}
}

// runc makes groups in hierarchies that we do not use; Remove used to leave them behind.
func TestRemoveReachesHierarchiesThatWeDoNotUse(t *testing.T) {
	tree, err := System()
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.others) == 0 {
		t.Skip("every hierarchy of this machine is one that we use")
	}
	path := fmt.Sprintf("/wherry-test-%d", os.Getpid())
	for _, dir := range tree.dirs() {
		if err := os.MkdirAll(filepath.Join(dir, path, "child"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Remove(path); err != nil {
		t.Fatal(err)
	}
	for _, dir := range tree.dirs() {
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
			t.Errorf("%s is left", filepath.Join(dir, path))
		}
	}
}

func TestRefusesTheRoot(t *testing.T) {
	for _, p := range []string{"", "/", "..", "/a/../..", "a/../b"} {
		if err := Kill(p); err == nil {
			t.Errorf("Kill(%q) was accepted", p)
		}
		if err := Remove(p); err == nil {
			t.Errorf("Remove(%q) was accepted", p)
		}
	}
}

// fakeV2 is a v2 tree in a folder: mkdir adds the files that the kernel would.
func fakeV2(t *testing.T) *Tree {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"cgroup.controllers": "cpu memory pids hugetlb cpuset", "cgroup.subtree_control": "", "cgroup.procs": "",
		"memory.max": "max", "memory.low": "0", "memory.swap.max": "max", "memory.current": "4096", "memory.swap.current": "0",
		"memory.stat": "anon 1000\ninactive_file 96\npgfault 7\npgmajfault 2\n", "memory.events": "oom 1\noom_kill 1\n",
		"cpu.weight": "100", "cpu.max": "max 100000", "cpu.stat": "usage_usec 1500\n", "cpuset.cpus": "", "cpuset.mems": "",
		"pids.max": "max", "pids.current": "3", "hugetlb.2MB.max": "max", "memory.oom.group": "0",
		"cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=2000\nfull avg10=0.00 avg60=0.00 avg300=0.25 total=1000\n",
	}
	fill := func(p string) {
		for f, v := range files {
			if err := os.WriteFile(filepath.Join(p, f), []byte(v), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(dir)
	return &Tree{mode: V2, hierarchies: []hierarchy{{dir: dir, unified: true}}, mkdir: func(p string) error {
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		fill(p)
		return nil
	}}
}

func content(t *testing.T, tree *Tree, path, file string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(tree.v2(), path, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

func TestV2Limits(t *testing.T) {
	tree := fakeV2(t)
	err := tree.Ensure("/w/pods/a", &specs.LinuxResources{
		Memory:         &specs.LinuxMemory{Limit: new(int64(100)), Swap: new(int64(150)), Reservation: new(int64(50))},
		CPU:            &specs.LinuxCPU{Shares: new(uint64(1024)), Quota: new(int64(5)), Period: new(uint64(10)), Cpus: "0-1", Mems: "0"},
		Pids:           &specs.LinuxPids{Limit: new(int64(-1))},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4}, {Pagesize: "1GB", Limit: 0}},
		Unified:        map[string]string{"memory.oom.group": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"memory.max": "100", "memory.swap.max": "50", "memory.low": "50", "cpu.weight": "100", "cpu.max": "5 10",
		"cpuset.cpus": "0-1", "cpuset.mems": "0", "pids.max": "max", "hugetlb.2MB.max": "4", "memory.oom.group": "1",
	} {
		if got := content(t, tree, "/w/pods/a", file); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if got := content(t, tree, "/w", "cgroup.subtree_control"); !strings.Contains(got, "+memory") {
		t.Errorf("controllers of /w are not delegated: %q", got)
	}
	s, err := tree.Stats("/w/pods/a")
	if err != nil {
		t.Fatal(err)
	}
	if s.CPU != 1500*time.Microsecond || s.MemoryWorkingSet != 4000 || s.MemoryLimit != 100 || s.OOMKills != 1 || s.Pids != 3 {
		t.Errorf("stats %+v", s)
	}
	if s.CPUPressure == nil || s.CPUPressure.Some.Avg10 != 1.5 || s.CPUPressure.Full.Total != time.Millisecond {
		t.Errorf("pressure %+v", s.CPUPressure)
	}
}

func TestV2RefusesPathsAsUnifiedKeys(t *testing.T) {
	tree := fakeV2(t)
	err := tree.Ensure("/w", &specs.LinuxResources{Unified: map[string]string{"../memory.max": "1"}})
	if err == nil {
		t.Fatal("a unified key that leaves the group was written")
	}
}

func TestSharesOfAWeight(t *testing.T) {
	for weight, want := range map[uint64]uint64{0: 0, 1: 2, 100: 1024, 10000: maxShares} {
		if got := shares(weight); got != want {
			t.Errorf("shares(%d) = %d, want %d", weight, got, want)
		}
	}
	for w := uint64(2); w <= 10000; w += 7 {
		if got := Weight(shares(w)); got > w {
			t.Errorf("weight %d becomes %d shares, and they weight %d", w, shares(w), got)
		}
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 1024: 100, 262144: 10000, 1 << 30: 10000} {
		if got := Weight(shares); got != want {
			t.Errorf("Weight(%d) = %d, want %d", shares, got, want)
		}
	}
	for s := uint64(2); s < 262144; s *= 2 {
		if Weight(s) > Weight(s*2) {
			t.Errorf("weight falls between %d and %d", s, s*2)
		}
	}
}

func TestDetect(t *testing.T) {
	v1 := "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 31 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n" +
		"34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
	v2 := "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
	for name, c := range map[string]struct {
		in   string
		mode Mode
		n    int
	}{
		"v1": {v1, V1, 2}, "v2": {v2, V2, 1}, "hybrid": {v1 + v2, Hybrid, 3}, "mounted twice": {v2 + v2, V2, 1},
	} {
		tree, err := detect(strings.NewReader(c.in))
		if err != nil || tree.mode != c.mode || len(tree.hierarchies) != c.n {
			t.Errorf("%s: %+v, %v", name, tree, err)
		}
	}
	if _, err := detect(strings.NewReader("1 2 0:1 / / rw - ext4 /dev/sda rw\n")); err == nil {
		t.Error("a machine without cgroups was accepted")
	}
}

func TestDeviceRule(t *testing.T) {
	for want, d := range map[string]specs.LinuxDeviceCgroup{
		"a *:* rwm": {}, "c 1:3 rw": {Type: "c", Major: new(int64(1)), Minor: new(int64(3)), Access: "rw"},
		"c 136:* rwm": {Type: "c", Major: new(int64(136)), Minor: new(int64(-1)), Access: "rwm"},
	} {
		if got := deviceRule(d); got != want {
			t.Errorf("deviceRule(%+v) = %q, want %q", d, got, want)
		}
	}
}

func FuzzParsePressure(f *testing.F) {
	f.Add("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	f.Add("some")
	f.Fuzz(func(t *testing.T, doc string) {
		p, err := parsePressure(doc)
		if err == nil && p == (Pressure{}) && strings.Contains(doc, "avg10=5.00 ") && strings.HasPrefix(doc, "some avg10=5.00 avg60=0.00 avg300=0.00 total="+strconv.Itoa(1)) {
			t.Error("a value was lost")
		}
	})
}
