package eviction

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/disk"
)

const mi = 1 << 20

func pod(name string, bytes, inodes uint64, change ...func(*v1.Pod)) Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	for _, f := range change {
		f(p)
	}
	return Pod{Pod: p, Usage: Usage{bytes, inodes}, Containers: map[string]Usage{"c": {Bytes: bytes}}}
}

func asks(q string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(q)}
	}
}

func prio(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

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
		"the one that goes":     {[]Pod{{Pod: gone.Pod, Usage: Usage{500 * mi, 1}}, other}, false},
		"a little":              {[]Pod{{Pod: other.Pod, Usage: Usage{31 * mi, 1}}}, false},
		"another hog":           {[]Pod{{Pod: other.Pod, Usage: Usage{60 * mi, 1}}}, true},
		"one that has come now": {[]Pod{pod("new", 50*mi, 1)}, true},
	} {
		if got := Grows(low, []Pod{gone, other}, c.now, gone); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func ended(p Pod) Pod { p.Ended = true; return p }

func TestChoose(t *testing.T) {
	bytes := Shortage{Threshold: Threshold{Signal: NodeFsAvailable, Least: 100 * mi}}
	inodes := Shortage{Threshold: Threshold{Signal: NodeFsInodesFree, Least: 1000}}
	for _, c := range []struct {
		name  string
		short Shortage
		pods  []Pod
		want  string
	}{
		{"nobody", bytes, nil, ""},
		{"the greatest", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1), pod("c", 20*mi, 1)}, "b"},
		{"not the one that asked for it", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1, asks("40Mi"))}, "a"},
		{"but the one that takes more", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1, asks("20Mi"))}, "b"},
		{"priority before size", bytes, []Pod{pod("a", 10*mi, 1), pod("b", 30*mi, 1, prio(5))}, "a"},
		{"what was asked for before priority", bytes, []Pod{pod("a", 10*mi, 1, asks("20Mi")), pod("b", 30*mi, 1, prio(5))}, "b"},
		{"those who asked, when nobody else is left", bytes, []Pod{pod("a", 10*mi, 1, asks("20Mi"))}, "a"},
		{"nobody whose end would be of use", bytes, []Pod{pod("a", 1*mi, 1e6)}, ""},
		{"what has ended before all others", bytes, []Pod{pod("a", 50*mi, 1), ended(pod("b", 10*mi, 1, prio(5), asks("20Mi")))}, "b"},
		{"inodes", inodes, []Pod{pod("a", 1000*mi, 1), pod("b", 1, 5000), pod("c", 1, 4000, asks("1"))}, "b"},
		{"few inodes", inodes, []Pod{pod("a", 1000*mi, 10)}, ""},
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

func TestThresholds(t *testing.T) {
	node := disk.Room{Total: 1000 * mi, Free: 99 * mi, Inodes: 1000, FreeInodes: 500}
	image := disk.Room{Total: 2000 * mi, Free: 500 * mi}
	hard := map[string]string{NodeFsAvailable: "10%", NodeFsInodesFree: "5%", ImageFsAvailable: "1Gi", ImageFsInodesFree: "5%", "memory.available": "1Gi"}
	list, err := ParseThresholds(hard, node, image)
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v; want three: the image's file system makes its inodes as it needs them", list, err)
	}
	for _, c := range []struct {
		node, image disk.Room
		want        string
		free        int64
	}{
		{node, image, NodeFsAvailable, 99 * mi},
		{disk.Room{Free: 100 * mi, FreeInodes: 49}, disk.Room{Free: 2000 * mi}, NodeFsInodesFree, 49},
		{disk.Room{Free: 100 * mi, FreeInodes: 50}, disk.Room{Free: 1023 * mi}, ImageFsAvailable, 1023 * mi},
		{disk.Room{Free: 100 * mi, FreeInodes: 50}, disk.Room{Free: 1024 * mi}, "", 0},
	} {
		if got, _ := Short(list, c.node, c.image); got.Signal != c.want || got.Free != c.free {
			t.Errorf("%+v, %+v: %+v, want %s", c.node, c.image, got, c.want)
		}
	}
	for _, bad := range []string{"x", "101%", "-1%", "%", "-1Gi"} {
		if _, err := ParseThresholds(map[string]string{NodeFsAvailable: bad}, node, image); err == nil {
			t.Errorf("%q is a threshold", bad)
		}
	}
}

func TestMessageIsUpstreams(t *testing.T) {
	s := Shortage{Threshold: Threshold{Signal: NodeFsAvailable, Least: 100 * mi}, Free: 64*mi + 1}
	want := "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 64Mi. " +
		"Container c was using 30Mi, request is 20Mi, has larger consumption of ephemeral-storage. "
	if got := Message(s, pod("p", 30*mi, 1, asks("20Mi"))); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	s = Shortage{Threshold: Threshold{Signal: NodeFsInodesFree, Least: 100}, Free: 7}
	if got, want := Message(s, pod("p", 30*mi, 1)), "The node was low on resource: inodes. Threshold quantity: 100, available: 7. "; got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}
