package metrics

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

// point is what a kubelet says about a node or a container.
type point struct {
	at      time.Time
	cpu     float64 // the seconds of CPU time that it has used
	memory  float64 // its working set in bytes
	started time.Time
}

// sample is one answer of a kubelet. It has no pod that it does not know all about.
type sample struct {
	node *point // nil if the kubelet does not say
	pods map[types.NamespacedName]map[string]point
}

// largestAnswer bounds what is read of a kubelet's answer: many times what a full node needs.
const largestAnswer = 16 << 20

var errTooLarge = fmt.Errorf("the answer has more than %d MiB", largestAnswer>>20)

// read reads a kubelet's metrics, in the text format. What has no time of its own was measured now.
func read(body io.Reader, now time.Time) (sample, error) {
	limited := &io.LimitedReader{R: body, N: largestAnswer + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(limited)
	switch {
	case limited.N == 0:
		return sample{}, errTooLarge
	case err != nil:
		return sample{}, fmt.Errorf("metrics: %w", err)
	}
	g := gathering{now: now, containers: map[types.NamespacedName]map[string]*partial{}}
	for _, f := range []struct {
		name string
		set  func(p *partial, v float64, at time.Time)
	}{
		{"cpu_usage_seconds_total", (*partial).setCPU},
		{"memory_working_set_bytes", (*partial).setMemory},
		{"start_time_seconds", (*partial).setStart},
	} {
		for _, m := range families["node_"+f.name].GetMetric() {
			g.put(&g.node, m, f.set)
		}
		for _, m := range families["container_"+f.name].GetMetric() {
			g.put(g.container(m), m, f.set)
		}
	}
	out := g.sample()
	if out.node == nil && len(out.pods) == 0 {
		return sample{}, errors.New("the answer has no metrics of the node or its containers")
	}
	return out, nil
}

// partial is a point of which not everything is known yet.
type partial struct {
	point
	hasCPU, hasMemory bool
}

func (p *partial) setCPU(v float64, at time.Time) { p.cpu, p.at, p.hasCPU = v, at, true }

func (p *partial) setMemory(v float64, _ time.Time) { p.memory, p.hasMemory = v, true }

// setStart takes the start for the moment after it: a later one is no harm, an earlier one would be.
func (p *partial) setStart(v float64, _ time.Time) {
	if v > 0 && v < latest {
		p.started = time.UnixMicro(int64(math.Ceil(v * 1e6)))
	}
}

func (p *partial) complete() bool { return p.hasCPU && p.hasMemory }

// gathering collects a sample from series.
type gathering struct {
	now        time.Time
	node       partial
	containers map[types.NamespacedName]map[string]*partial
}

func (g *gathering) container(m *dto.Metric) *partial {
	var pod types.NamespacedName
	var name string
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			pod.Namespace = l.GetValue()
		case "pod":
			pod.Name = l.GetValue()
		case "container":
			name = l.GetValue()
		}
	}
	if g.containers[pod] == nil {
		g.containers[pod] = map[string]*partial{}
	}
	if g.containers[pod][name] == nil {
		g.containers[pod][name] = &partial{}
	}
	return g.containers[pod][name]
}

// Numbers from here on, and times, are not believed: a time in seconds that RFC 3339 cannot write, and
// more than a machine can have.
const (
	latest = 253402300800 // the year 10000
	most   = 1 << 62
)

func (g *gathering) put(p *partial, m *dto.Metric, set func(*partial, float64, time.Time)) {
	at := g.now
	if m.TimestampMs != nil {
		at = time.UnixMilli(m.GetTimestampMs())
	}
	v := value(m)
	if !(v >= 0 && v < most) || at.Unix() <= 0 || at.Unix() >= latest { // not a number is refused, too
		return
	}
	set(p, v, at)
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return math.NaN()
}

func (g *gathering) sample() sample {
	out := sample{pods: make(map[types.NamespacedName]map[string]point, len(g.containers))}
	if g.node.complete() {
		out.node = &g.node.point
	}
	for pod, containers := range g.containers {
		points := make(map[string]point, len(containers))
		for name, p := range containers {
			if p.complete() {
				points[name] = p.point
			}
		}
		if len(points) == len(containers) {
			out.pods[pod] = points
		}
	}
	return out
}
