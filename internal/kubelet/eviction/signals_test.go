package eviction

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestThresholds(t *testing.T) {
	levels := Levels{
		NodeFsAvailable: {Total: 1000 * mi}, NodeFsInodesFree: {Total: 1000}, ImageFsAvailable: {Total: 2000 * mi}, ImageFsInodesFree: {},
		MemoryAvailable: {Total: 4000 * mi}, AllocatableMemory: {Total: 3000 * mi}, PIDAvailable: {Total: 32768},
	}
	rules, err := Parse(Limits{
		Hard: map[string]string{
			NodeFsAvailable: "10%", NodeFsInodesFree: "5%", ImageFsAvailable: "1Gi", ImageFsInodesFree: "5%", MemoryAvailable: "10%", PIDAvailable: "100%",
			ContainerFsAvailable: "1Gi",
		},
		Soft:       map[string]string{MemoryAvailable: "1Gi", NodeFsAvailable: "2Gi"},
		SoftGrace:  map[string]string{MemoryAvailable: "1m30s", NodeFsAvailable: "1s"},
		MinReclaim: map[string]string{MemoryAvailable: "100Mi", ImageFsAvailable: "1%"},
		Pods:       true,
	})
	if err != nil {
		t.Fatal(err)
	}
	got, never, err := Resolve(rules, levels)
	want := []Threshold{
		{MemoryAvailable, 400 * mi, 100 * mi, 0}, {MemoryAvailable, 1024 * mi, 100 * mi, 90 * time.Second}, {AllocatableMemory, 300 * mi, 100 * mi, 0},
		{NodeFsAvailable, 100 * mi, 0, 0}, {NodeFsInodesFree, 50, 0, 0}, {ImageFsAvailable, 1024 * mi, 20 * mi, 0},
	}
	if err != nil || !slices.Equal(got, want) || len(never) != 1 || never[0].Signal != NodeFsAvailable {
		t.Errorf("%+v, never %+v, %v\nwant %+v", got, never, err, want)
	}
}

func TestBadLimits(t *testing.T) {
	one := func(signal, value string) map[string]string { return map[string]string{signal: value} }
	for want, l := range map[string]Limits{
		"unsupported eviction signal disk.free":                                            {Hard: one("disk.free", "1Gi")},
		"unsupported eviction signal gone":                                                 {MinReclaim: one("gone", "1Gi")},
		"unsupported eviction signal past":                                                 {SoftGrace: one("past", "1s")},
		"eviction threshold memory.available must be positive: 0":                          {Hard: one(MemoryAvailable, "0")},
		`"-1Gi" is negative`:                                                               {Hard: one(MemoryAvailable, "-1Gi")},
		`"101%" is not a percentage`:                                                       {Hard: one(MemoryAvailable, "101%")},
		`"%" is not a percentage`:                                                          {Hard: one(NodeFsAvailable, "%")},
		"quantities must match the regular expression":                                     {Hard: one(NodeFsAvailable, "x")},
		"grace period must be specified for the soft eviction threshold memory.available":  {Soft: one(MemoryAvailable, "1Gi")},
		"invalid eviction grace period specified: -1s, must be a positive value":           {SoftGrace: one(MemoryAvailable, "-1s")},
		"eviction percentage minimum reclaim memory.available must be positive: 0%":        {MinReclaim: one(MemoryAvailable, "0%")},
		`--eviction-minimum-reclaim: memory.available: "-1" is negative`:                   {MinReclaim: one(MemoryAvailable, "-1")},
		`--eviction-soft-grace-period: memory.available: time: invalid duration "forever"`: {SoftGrace: one(MemoryAvailable, "forever")},
	} {
		if _, err := Parse(l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", l, err, want)
		}
	}
}

// TestState plays looks at a node, one line each: after how many seconds, what is free of memory and of the
// disk, what is due, which conditions hold, and when to look again.
func TestState(t *testing.T) {
	list := []Threshold{
		{MemoryAvailable, 100, 50, 0}, {MemoryAvailable, 500, 0, 30 * time.Second}, {NodeFsAvailable, 100, 0, 0},
	}
	const transition = 60 * time.Second
	start := time.Now()
	for name, looks := range map[string][]struct {
		at, memory, disk int64
		want             string
	}{
		"nothing":         {{0, 1000, 1000, "[] [] 0s"}},
		"at a threshold":  {{0, 500, 100, "[] [] 0s"}},
		"a hard one":      {{0, 1000, 99, "[nodefs.available<100] [DiskPressure] 1m0s"}},
		"memory first":    {{0, 99, 99, "[memory.available<100 nodefs.available<100] [MemoryPressure DiskPressure] 30s"}},
		"a soft one":      {{0, 499, 1000, "[] [MemoryPressure] 30s"}, {29, 499, 1000, "[] [MemoryPressure] 1s"}, {30, 499, 1000, "[memory.available<500] [MemoryPressure] 1m0s"}},
		"one that passes": {{0, 499, 1000, "[] [MemoryPressure] 30s"}, {20, 500, 1000, "[] [MemoryPressure] 40s"}, {40, 499, 1000, "[] [MemoryPressure] 30s"}},
		"the minimum reclaim": {
			{0, 90, 1000, "[memory.available<100] [MemoryPressure] 30s"}, {1, 149, 1000, "[memory.available<100] [MemoryPressure] 29s"},
			{2, 150, 1000, "[] [MemoryPressure] 28s"}, {3, 149, 1000, "[] [MemoryPressure] 27s"},
		},
		"the transition": {
			{0, 1000, 50, "[nodefs.available<100] [DiskPressure] 1m0s"}, {10, 1000, 500, "[] [DiskPressure] 50s"},
			{59, 1000, 500, "[] [DiskPressure] 1s"}, {60, 1000, 500, "[] [] 0s"},
		},
		"what cannot be read": {{0, 90, 1000, "[memory.available<100] [MemoryPressure] 30s"}, {1, -1, 1000, "[] [MemoryPressure] 59s"}},
	} {
		var s State
		for _, l := range looks {
			levels := Levels{MemoryAvailable: {l.memory, 1000}, NodeFsAvailable: {l.disk, 1000}}
			if l.memory < 0 {
				delete(levels, MemoryAvailable)
			}
			f := s.Look(list, levels, transition, start.Add(time.Duration(l.at)*time.Second))
			due := []string{}
			for _, d := range f.Due {
				due = append(due, fmt.Sprintf("%s<%d", d.Signal, d.Least))
			}
			if got := fmt.Sprint(due, " ", f.Conditions, " ", f.Next); got != l.want {
				t.Errorf("%s, after %d s: %s, want %s", name, l.at, got, l.want)
			}
		}
	}
}

// Without a transition period a condition still holds as long as its cause.
func TestNoTransition(t *testing.T) {
	var s State
	list := []Threshold{{Signal: PIDAvailable, Least: 10}}
	for free, want := range []bool{true, true} {
		if f := s.Look(list, Levels{PIDAvailable: {int64(free), 100}}, 0, time.Now()); slices.Contains(f.Conditions, v1.NodePIDPressure) != want {
			t.Errorf("%d free: %+v", free, f)
		}
	}
	if f := s.Look(list, Levels{PIDAvailable: {10, 100}}, 0, time.Now()); len(f.Conditions) > 0 {
		t.Errorf("%+v", f)
	}
}

func TestRefuses(t *testing.T) {
	memory, disk, pids := v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure
	tolerates := func(key string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: key, Operator: v1.TolerationOpExists}} }
	}
	for _, c := range []struct {
		name       string
		pod        Pod
		conditions []v1.NodeConditionType
		want       string
	}{
		{"nothing", mem("p", 0), nil, ""},
		{"best effort", mem("p", 0), []v1.NodeConditionType{memory}, "The node had condition: [MemoryPressure]. "},
		{"burstable", mem("p", 0, asksMem("1Mi")), []v1.NodeConditionType{memory}, ""},
		{"tolerates it", mem("p", 0, tolerates(v1.TaintNodeMemoryPressure)), []v1.NodeConditionType{memory}, ""},
		{"tolerates another", mem("p", 0, tolerates(v1.TaintNodeDiskPressure)), []v1.NodeConditionType{memory}, "The node had condition: [MemoryPressure]. "},
		{"disk", mem("p", 0, asksMem("1Mi"), tolerates(v1.TaintNodeDiskPressure)), []v1.NodeConditionType{disk}, "The node had condition: [DiskPressure]. "},
		{"several", mem("p", 0, asksMem("1Mi")), []v1.NodeConditionType{memory, pids}, "The node had condition: [MemoryPressure PIDPressure]. "},
		{"critical", mem("p", 0, prio(2000000000)), []v1.NodeConditionType{memory, disk, pids}, ""},
	} {
		got, refused := Refuses(c.pod.Pod, c.conditions)
		if got != c.want || refused != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, got, refused, c.want)
		}
	}
}
