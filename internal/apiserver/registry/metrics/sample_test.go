package metrics

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

const text = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="shop",pod="web"} 4.5 1700000000500
container_cpu_usage_seconds_total{container="side",namespace="shop",pod="web"} 0.25
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="main",namespace="shop",pod="web"} 1.048576e+06 1700000000500
container_memory_working_set_bytes{container="side",namespace="shop",pod="web"} 0
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="main",namespace="shop",pod="web"} 1.6999999e+09
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1000.5 1700000000250
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 2e+09 1700000000250
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 5 1700000000500
`

var web = types.NamespacedName{Namespace: "shop", Name: "web"}

func TestRead(t *testing.T) {
	now := time.Unix(1700000001, 0)
	whole := sample{
		node: &point{at: time.UnixMilli(1700000000250), cpu: 1000.5, memory: 2e9},
		pods: map[types.NamespacedName]map[string]point{web: {
			"main": {at: time.UnixMilli(1700000000500), cpu: 4.5, memory: 1 << 20, started: time.Unix(1699999900, 0)},
			"side": {at: now, cpu: 0.25},
		}},
	}
	onlyNode := sample{node: whole.node, pods: map[types.NamespacedName]map[string]point{}}
	memory := `container_memory_working_set_bytes{container="side",namespace="shop",pod="web"} `
	node := `node_cpu_usage_seconds_total 1000.5 `
	cases := map[string]struct {
		text string
		want sample
		err  string
	}{
		"all of it":                         {text: text, want: whole},
		"untyped":                           {text: "node_cpu_usage_seconds_total 1000.5 1700000000250\nnode_memory_working_set_bytes 2e+09 1700000000250\n", want: onlyNode},
		"a container without memory":        {text: strings.Replace(text, memory+"0\n", "", 1), want: onlyNode},
		"a container with only a start":     {text: text + "container_start_time_seconds{container=\"new\",namespace=\"shop\",pod=\"web\"} 1.7e9\n", want: onlyNode},
		"memory that is not a number":       {text: strings.Replace(text, memory+"0", memory+"NaN", 1), want: onlyNode},
		"negative memory":                   {text: strings.Replace(text, memory+"0", memory+"-1", 1), want: onlyNode},
		"more memory than there is":         {text: strings.Replace(text, memory+"0", memory+"1e30", 1), want: onlyNode},
		"a node without CPU":                {text: strings.Replace(text, node+"1700000000250\n", "", 1), want: sample{pods: whole.pods}},
		"a time that nobody can write":      {text: strings.Replace(text, node+"1700000000250", node+"9223372036854775807", 1), want: sample{pods: whole.pods}},
		"a time before there were machines": {text: strings.Replace(text, node+"1700000000250", node+"-5", 1), want: sample{pods: whole.pods}},
		"nothing":                           {err: "no metrics of the node"},
		"something else":                    {text: "<html>\n", err: "text format parsing error"},
		"cut off":                           {text: text[:len(text)-20], err: "text format parsing error"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := read(strings.NewReader(c.text), now)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(sample{}, point{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// endless is a kubelet that does not stop.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

func TestAnEndlessAnswerIsRefused(t *testing.T) {
	if _, err := read(endless{}, time.Now()); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
	if _, err := read(io.MultiReader(strings.NewReader(text), endless{}), time.Now()); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
}

// sane checks that whatever a kubelet says, what is made of it can be answered.
func sane(t *testing.T, answers ...string) {
	t.Helper()
	now := time.Unix(1700000001, 0)
	var h history
	for _, s := range answers {
		if got, err := read(strings.NewReader(s), now); err == nil {
			h = h.add(got, now)
		}
	}
	pairs := []pair{h.node}
	for _, containers := range h.pods {
		pairs = slices.AppendSeq(pairs, maps.Values(containers))
	}
	for _, p := range pairs {
		u, ok := p.usage()
		if ok && (u.resources.Cpu().Sign() < 0 || u.resources.Memory().Sign() < 0 || u.window <= 0 || u.at.Year() > 9999) {
			t.Errorf("%+v of %q", u, answers)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(text, text)
	f.Add(text, strings.ReplaceAll(text, "17000000", "17000001"))
	f.Add("node_cpu_usage_seconds_total 1e18 1\nnode_memory_working_set_bytes 4e18\n", "node_cpu_usage_seconds_total 4e18 1001\nnode_memory_working_set_bytes 1 1\n")
	f.Fuzz(func(t *testing.T, one, two string) { sane(t, one, two) })
}

// TestBrokenAnswers changes answers at random: go's fuzzing is slow with all that this package imports.
func TestBrokenAnswers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same ones each time
	broken := func() string {
		b := []byte(text)
		for range 1 + r.IntN(4) {
			switch i := r.IntN(len(b)); r.IntN(3) {
			case 0:
				b[i] = byte(r.IntN(256))
			case 1:
				b[i] = byte('0' + r.IntN(10))
			case 2:
				b = slices.Delete(b, i, min(len(b), i+r.IntN(20)))
			}
		}
		return string(b)
	}
	for range 5000 {
		sane(t, broken(), broken())
	}
}
