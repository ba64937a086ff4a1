package eviction

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const mi = 1 << 20

func made(name string, u Usage, change ...func(*v1.Pod)) Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	for _, f := range change {
		f(p)
	}
	return Pod{Pod: p, Usage: u, Containers: map[string]Usage{"c": u}}
}

func pod(name string, bytes, inodes uint64, change ...func(*v1.Pod)) Pod {
	return made(name, Usage{Bytes: bytes, Inodes: inodes}, change...)
}

func mem(name string, bytes uint64, change ...func(*v1.Pod)) Pod {
	return made(name, Usage{Memory: bytes}, change...)
}

func requests(what v1.ResourceName, q string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{what: resource.MustParse(q)}
	}
}

func asks(q string) func(*v1.Pod)    { return requests(v1.ResourceEphemeralStorage, q) }
func asksMem(q string) func(*v1.Pod) { return requests(v1.ResourceMemory, q) }
func prio(n int32) func(*v1.Pod)     { return func(p *v1.Pod) { p.Spec.Priority = &n } }

// The space of a pod that is gone is waited for before another pod is evicted, unless that one
// writes.
func TestRoomThatIsAboutToBeFree(t *testing.T) {
	low := Shortage{Threshold{Signal: NodeFsAvailable, Least: 100 * mi}, 10 * mi}
	gone := pod("gone", 400*mi, 1)
	for free, want := range map[int64]bool{10 * mi: false, 90 * mi: false, 320 * mi: true} {
		if got := GivenBack(low, Shortage{low.Threshold, free}, gone); got != want {
			t.Errorf("%d free: %v", free, got)
		}
	}
	other := pod("other", 30*mi, 1)
	gone.Pod.UID, other.Pod.UID = "gone", "other"
	for name, c := range map[string]struct {
		now  []Pod
		want bool
	}{
		"nobody writes":         {[]Pod{gone, other}, false},
		"the one that goes":     {[]Pod{{Pod: gone.Pod, Usage: Usage{Bytes: 500 * mi}}, other}, false},
		"a little":              {[]Pod{{Pod: other.Pod, Usage: Usage{Bytes: 31 * mi}}}, false},
		"another hog":           {[]Pod{{Pod: other.Pod, Usage: Usage{Bytes: 60 * mi}}}, true},
		"one that has come now": {[]Pod{pod("new", 50*mi, 1)}, true},
	} {
		if got := Grows(low, []Pod{gone, other}, c.now, gone); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func ended(p Pod) Pod { p.Ended = true; return p }

// claims gives a pod a claim that holds so many bytes and 5,000 files.
func claims(p Pod, holds, size uint64) Pod {
	p.Claims = map[string]Claimed{"data": {Usage: Usage{Bytes: holds, Inodes: 5000}, Size: size}}
	return p
}

func TestChoose(t *testing.T) {
	bytes := Shortage{Threshold: Threshold{Signal: NodeFsAvailable, Least: 100 * mi}}
	inodes := Shortage{Threshold: Threshold{Signal: NodeFsInodesFree, Least: 1000}}
	memory := Shortage{Threshold: Threshold{Signal: MemoryAvailable, Least: 100 * mi}, Free: 90 * mi}
	pids := Shortage{Threshold: Threshold{Signal: PIDAvailable, Least: 1000}, Free: 900}
	pid := func(name string, n uint64, change ...func(*v1.Pod)) Pod { return made(name, Usage{PIDs: n}, change...) }
	for _, c := range []struct {
		name  string
		short Shortage
		pods  []Pod
		want  string
	}{
		{"nobody", bytes, nil, ""},
		{"the greatest", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1), pod("c", 20*mi, 1)}, "b"},
		{"not the one that asked for it", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1, asks("40Mi"))}, "a"},
		{"but the one that takes more", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 60*mi, 1, asks("20Mi"))}, "b"},
		{"what is above what was asked for", bytes, []Pod{pod("a", 30*mi, 1), pod("b", 60*mi, 1, asks("40Mi"))}, "a"},
		{"priority before size", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1, prio(5))}, "a"},
		{"what was asked for before priority", bytes, []Pod{pod("a", 10*mi, 1, asks("20Mi")), pod("b", 30*mi, 1, prio(5))}, "b"},
		{"those who asked, when nobody else is left", bytes, []Pod{pod("a", 10*mi, 1, asks("20Mi"))}, "a"},
		{"nobody whose end would be of use", bytes, []Pod{pod("a", 1*mi, 1e6)}, ""},
		{"what has ended before all others", bytes, []Pod{pod("a", 50*mi, 1), ended(pod("b", 10*mi, 1, prio(5), asks("20Mi")))}, "b"},
		{"inodes", inodes, []Pod{pod("a", 1000*mi, 1), pod("b", 1, 5000), pod("c", 1, 4000, asks("1"))}, "b"},
		{"few inodes", inodes, []Pod{pod("a", 1000*mi, 10)}, ""},
		{"a claim that is over-full", bytes, []Pod{pod("a", 50*mi, 1), claims(pod("b", 1*mi, 1), 90*mi, 20*mi)}, "b"},
		{"a claim within its size", bytes, []Pod{pod("a", 10*mi, 1), claims(pod("b", 1*mi, 1), 90*mi, 100*mi)}, "a"},
		{"a claim of higher priority", bytes, []Pod{pod("a", 10*mi, 1), claims(pod("b", 1*mi, 1, prio(5)), 90*mi, 20*mi)}, "a"},
		{"the files of a claim", inodes, []Pod{pod("a", 1, 3000), claims(pod("b", 1, 1), 1, 100*mi)}, "b"},
		{"memory: the greatest", memory, []Pod{mem("a", 10*mi), mem("b", 30*mi)}, "b"},
		{"memory: above requests first", memory, []Pod{mem("a", 300*mi, asksMem("300Mi")), mem("b", 20*mi, asksMem("10Mi"))}, "b"},
		{"memory: best effort first", memory, []Pod{mem("a", 500*mi, asksMem("500Mi")), mem("b", 20*mi)}, "b"},
		{"memory: by how much above", memory, []Pod{mem("a", 300*mi, asksMem("290Mi")), mem("b", 20*mi)}, "b"},
		{"memory: priority before size", memory, []Pod{mem("a", 300*mi, prio(5)), mem("b", 20*mi)}, "b"},
		{"memory: requests before priority", memory, []Pod{mem("a", 300*mi, prio(5)), mem("b", 20*mi, asksMem("30Mi"))}, "a"},
		{"memory: within requests, the closest", memory, []Pod{mem("a", 20*mi, asksMem("300Mi")), mem("b", 20*mi, asksMem("30Mi"))}, "b"},
		{"memory: what has ended has none", memory, []Pod{ended(mem("a", 300*mi)), mem("b", 20*mi)}, "b"},
		{"memory: nobody, if all are not enough", memory, []Pod{mem("a", 4*mi), mem("b", 5*mi)}, ""},
		{"processes: priority first", pids, []Pod{pid("a", 900, prio(5)), pid("b", 100)}, "b"},
		{"processes: the fork bomb", pids, []Pod{pid("a", 100), pid("b", 4000), pid("c", 9)}, "b"},
		{"processes: the machine's own", pids, []Pod{pid("a", 50), pid("b", 9)}, ""},
	} {
		got, ok := Choose(c.short, c.pods)
		name := ""
		if ok {
			name = got.Pod.Name
		}
		if name != c.want {
			t.Errorf("%s: %q, want %q", c.name, name, c.want)
		}
	}
}

// What a pod's end would free depends on the disk that is short.
func TestUsageOnEachDisk(t *testing.T) {
	p := Pod{Usage: Usage{Bytes: 100, Inodes: 10}, LayersOf: map[string]Usage{"a": {Bytes: 20, Inodes: 1}, "b": {Bytes: 10, Inodes: 2}}}
	one, apart, split := Disks{}, Disks{ImagesApart: true, LayersApart: true}, Disks{ImagesApart: true}
	for _, c := range []struct {
		disks  Disks
		signal string
		want   Usage
		images bool
	}{
		{one, NodeFsAvailable, Usage{Bytes: 100, Inodes: 10}, true},
		{one, ImageFsInodesFree, Usage{Bytes: 100, Inodes: 10}, true},
		{apart, NodeFsInodesFree, Usage{Bytes: 70, Inodes: 7}, false},
		{apart, ImageFsAvailable, Usage{Bytes: 30, Inodes: 3}, true},
		{split, NodeFsAvailable, Usage{Bytes: 100, Inodes: 10}, false},
		{split, ImageFsAvailable, Usage{}, true},
		{one, MemoryAvailable, Usage{Bytes: 100, Inodes: 10}, false},
	} {
		short := Shortage{Threshold: Threshold{Signal: c.signal}}
		if got := c.disks.On(short, []Pod{p})[0].Usage; got != c.want || c.disks.FreedByImages(short) != c.images {
			t.Errorf("%+v, %s: %+v, want %+v", c.disks, c.signal, got, c.want)
		}
	}
}

func TestMessageIsUpstreams(t *testing.T) {
	init := func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "i"}}
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"}}}
	}
	whole := func(p *v1.Pod) {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("25Mi")}}
	}
	several := mem("p", 40*mi, init, whole)
	several.Containers = map[string]Usage{"c": {Memory: 30 * mi}, "i": {Memory: 10 * mi}, "e": {Memory: 5 * mi}}
	for _, c := range []struct {
		short Shortage
		pod   Pod
		want  string
	}{
		{Shortage{Threshold{Signal: NodeFsAvailable, Least: 100 * mi}, 64*mi + 1}, pod("p", 30*mi, 1, asks("20Mi")),
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 64Mi. " +
				"Container c was using 30Mi, request is 20Mi, has larger consumption of ephemeral-storage. "},
		{Shortage{Threshold{Signal: NodeFsAvailable, Least: 100 * mi}, 64 * mi}, claims(Pod{Pod: pod("p", 0, 0).Pod}, 90*mi, 20*mi),
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 64Mi. " +
				"Claim data was using 90Mi, was given 20Mi, and keeps its data. "},
		{Shortage{Threshold{Signal: NodeFsInodesFree, Least: 100}, 7}, pod("p", 30*mi, 1), "The node was low on resource: inodes. Threshold quantity: 100, available: 7. "},
		{Shortage{Threshold{Signal: PIDAvailable, Least: 100}, 7}, pod("p", 30*mi, 1), "The node was low on resource: pids. Threshold quantity: 100, available: 7. "},
		{Shortage{Threshold{Signal: MemoryAvailable, Least: 100 * mi}, 64 * mi}, mem("p", 30*mi),
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. " +
				"Container c was using 30Mi, request is 0, has larger consumption of memory. "},
		{Shortage{Threshold{Signal: AllocatableMemory, Least: 100 * mi}, 64 * mi}, several,
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. " +
				"Pod p was using 40Mi, request is 25Mi, has larger consumption of memory. " +
				"Container c was using 30Mi, request is 0, has larger consumption of memory. " +
				"Container i was using 10Mi, request is 0, has larger consumption of memory. "},
		{Shortage{Threshold{Signal: MemoryAvailable, Least: 100 * mi}, 64 * mi}, mem("p", 30*mi, asksMem("30Mi")),
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. "},
	} {
		if got, _ := Message(c.short, c.pod); got != c.want {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
	_, got := Message(Shortage{Threshold{Signal: AllocatableMemory, Least: 100 * mi}, 64 * mi}, several)
	want := map[string]string{
		"starved_resource": "memory", "offending_pod": "p", "offending_pod_usage": "40Mi",
		"offending_containers": "c,i", "offending_containers_usage": "30Mi,10Mi",
	}
	if !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
}
