package metrics

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Unix(1700000000, 0)

// at returns a point so many seconds after start.
func at(seconds, cpu float64, change ...func(*point)) point {
	p := point{at: start.Add(time.Duration(seconds * float64(time.Second))), cpu: cpu, memory: 100}
	for _, f := range change {
		f(&p)
	}
	return p
}

// since returns a container's start so many seconds after start.
func since(seconds float64) func(*point) { return func(p *point) { p.started = at(seconds, 0).at } }

func TestRates(t *testing.T) {
	old := since(-1000)
	cases := map[string]struct {
		points []point
		cpu    string // what is used, "" if it is not known
		window time.Duration
	}{
		"nothing":                       {},
		"one point":                     {points: []point{at(0, 5, old)}},
		"two points":                    {points: []point{at(0, 5, old), at(10, 10, old)}, cpu: "500m", window: 10 * time.Second},
		"of three, the last two":        {points: []point{at(0, 5, old), at(10, 10, old), at(20, 11, old)}, cpu: "100m", window: 10 * time.Second},
		"idle":                          {points: []point{at(0, 5, old), at(10, 5, old)}, cpu: "0", window: 10 * time.Second},
		"no start":                      {points: []point{at(0, 5), at(10, 10)}, cpu: "500m", window: 10 * time.Second},
		"less than a core's thousandth": {points: []point{at(0, 5, old), at(10, 5.00001, old)}, cpu: "1u", window: 10 * time.Second},
		"more than there is":            {points: []point{at(0, 0), at(1, 4e18)}, cpu: "4611686018427387904n", window: time.Second},
		"measured only once":            {points: []point{at(0, 5, old), at(0, 5, old)}},
		"measured once, then again":     {points: []point{at(0, 5, old), at(10, 10, old), at(10, 10, old)}, cpu: "500m", window: 10 * time.Second},
		"measured shortly after":        {points: []point{at(0, 5, old), at(10, 10, old), at(10.25, 10.125, old)}, cpu: "500m", window: 10250 * time.Millisecond},
		"shortly after, again and again, too old": {points: []point{at(0, 5, old), at(119.9, 10, old), at(120.3, 10.125, old)}},
		"restarted":                                {points: []point{at(0, 5, old), at(10, 2, since(6))}, cpu: "500m", window: 4 * time.Second},
		"restarted and already past what it was":   {points: []point{at(0, 5, old), at(10, 6, since(4))}, cpu: "1", window: 6 * time.Second},
		"restarted a moment ago":                   {points: []point{at(0, 5, old), at(10, 0.5, since(9.5))}},
		"restarted, no start":                      {points: []point{at(0, 5), at(10, 2)}},
		"new":                                      {points: []point{at(0, 3, since(-6))}, cpu: "500m", window: 6 * time.Second},
		"new, a moment ago":                        {points: []point{at(0, 0.3, since(-0.6))}},
		"seen for the first time, long after":      {points: []point{at(0, 3, since(-121))}},
		"started in the future":                    {points: []point{at(0, 3, since(5))}},
		"the clock was set back":                   {points: []point{at(0, 5, old), at(10, 10, old), at(-90, 11, old)}},
		"the clock was set back, and time went by": {points: []point{at(0, 5, old), at(-90, 11, old), at(-80, 12, old)}, cpu: "100m", window: 10 * time.Second},
		"the clock was set ahead":                  {points: []point{at(0, 5, old), at(86400, 11, old)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var p pair
			for _, next := range c.points {
				p = p.follow(next)
			}
			u, ok := p.usage()
			if ok != (c.cpu != "") {
				t.Fatalf("known: %v: %+v", ok, p)
			}
			if !ok {
				return
			}
			if last := c.points[len(c.points)-1]; !u.at.Equal(last.at) || u.window != c.window {
				t.Errorf("at %s over %s, want %s over %s", u.at, u.window, last.at, c.window)
			}
			if got := u.resources.Cpu().String(); got != c.cpu || u.resources.Memory().String() != "100" {
				t.Errorf("%s, %s; want %s, 100", got, u.resources.Memory(), c.cpu)
			}
		})
	}
}

func TestWhatARequestDoes(t *testing.T) {
	ago := func(d time.Duration) time.Time { return start.Add(-d) }
	cases := map[string]struct {
		h    history
		want step
		wait time.Duration
	}{
		"nothing is known":                           {history{}, ask, 0},
		"one sample, just now":                       {history{samples: 1, taken: start}, wait, time.Second},
		"one sample, a while ago":                    {history{samples: 1, taken: ago(400 * time.Millisecond)}, wait, 600 * time.Millisecond},
		"one sample, a second ago":                   {history{samples: 1, taken: ago(time.Second)}, ask, 0},
		"two samples":                                {history{samples: 2, taken: ago(9 * time.Second)}, answer, 0},
		"two samples, the last one old":              {history{samples: 2, taken: ago(10 * time.Second)}, ask, 0},
		"two samples, the last one too old":          {history{samples: 2, taken: ago(time.Hour)}, ask, 0},
		"it did not answer":                          {history{silent: ago(9 * time.Second)}, answer, 0},
		"it did not answer the second time":          {history{samples: 1, taken: ago(7 * time.Second), silent: ago(time.Second)}, answer, 0},
		"it did not answer, but that is a while ago": {history{silent: ago(10 * time.Second)}, ask, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got, d := c.h.next(start); got != c.want || d != c.wait {
				t.Errorf("%v %s, want %v %s", got, d, c.want, c.wait)
			}
		})
	}
}

// sampled returns a sample of a node and its pod web with containers.
func sampled(node point, containers map[string]point) sample {
	return sample{node: &node, pods: map[types.NamespacedName]map[string]point{web: containers}}
}

func TestHistory(t *testing.T) {
	after := func(seconds float64) time.Time { return at(seconds, 0).at }
	var h history
	h = h.add(sampled(at(0, 10), map[string]point{"a": at(0, 1, since(-500)), "b": at(0.1, 1, since(-500))}), after(0))
	h = h.add(sampled(at(15, 40), map[string]point{"a": at(15, 4, since(-500)), "b": at(15.1, 2.5, since(-500))}), after(15))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"x": "y"}}}
	m, ok := h.nodeMetrics(n, after(16))
	if !ok || m.Name != "n" || m.Labels["x"] != "y" || m.Usage.Cpu().String() != "2" || !m.Timestamp.Time.Equal(after(15)) || m.Window.Duration != 15*time.Second {
		t.Errorf("%v: %+v", ok, m)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.PodStatus{StartTime: &metav1.Time{Time: after(-501)}}}
	p, ok := h.podMetrics(pod, after(16))
	if !ok || len(p.Containers) != 2 || p.Containers[0].Name != "a" || p.Containers[0].Usage.Cpu().String() != "200m" ||
		p.Containers[1].Usage.Cpu().String() != "100m" || !p.Timestamp.Time.Equal(after(15)) {
		t.Errorf("%v: %+v", ok, p)
	}

	if !h.current(after(24)) || h.current(after(25)) || (history{}).current(after(0)) {
		t.Error("when a sample answers")
	}
	absent := func(why string, h history, p *corev1.Pod) {
		t.Helper()
		if m, ok := h.podMetrics(p, h.taken); ok {
			t.Errorf("%s: %+v", why, m)
		}
	}
	again := pod.DeepCopy()
	again.Status.StartTime.Time = after(16)
	absent("measured before the pod began", h, again)
	again.Status.StartTime = nil
	absent("no kubelet has begun with it", h, again)
	again = pod.DeepCopy()
	again.Name = "other"
	absent("another pod", h, again)

	next := h.add(sampled(at(30, 41), map[string]point{"a": at(30, 5, since(-500)), "b": at(30, 0.1, since(29.5))}), after(30))
	absent("a container began a moment ago", next, pod)
	next = h.add(sample{node: new(at(30, 41))}, after(30))
	absent("it has ended", next, pod)

	late := h.add(sampled(at(15+121, 100), map[string]point{"a": at(15+121, 10, since(-500))}), after(15+121))
	if _, ok := late.nodeMetrics(n, late.taken); ok || late.samples != 1 {
		t.Errorf("after more than two minutes: %+v", late)
	}
	late = h.add(sampled(at(15+119, 40+119), nil), after(15+119))
	if m, ok := late.nodeMetrics(n, late.taken); !ok || m.Usage.Cpu().String() != "1" || m.Window.Duration != 119*time.Second {
		t.Errorf("after less than two minutes: %v %+v", ok, m)
	}
}
