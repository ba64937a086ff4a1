package numa

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestNodes(t *testing.T) {
	n := NodesOf(0, 1, 3, 63, 64, -1)
	if n.String() != "0-1,3,63" || n.Count() != 4 || !n.Has(63) || n.Has(2) || n.Has(64) {
		t.Error(n)
	}
	if back, err := Parse(n.String()); err != nil || back != n {
		t.Error(back, err)
	}
	var subs []string
	for s := range NodesOf(0, 2, 63).Subsets() {
		subs = append(subs, s.String())
	}
	if want := "0 2 0,2 63 0,63 2,63 0,2,63"; strings.Join(subs, " ") != want {
		t.Errorf("%q, want %q", subs, want)
	}
	for range Nodes(0).Subsets() {
		t.Error("nothing has a part")
	}
}

func TestCheck(t *testing.T) {
	all := NodesOf(0, 1, 2, 3, 4, 5, 6, 7, 8)
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{Policy: "none", Scope: "container"}, ""},
		{Config{Policy: "restricted", Scope: "pod", Nodes: NodesOf(0)}, ""},
		{Config{Policy: "best", Scope: "pod"}, `topologyManagerPolicy (--topology-manager-policy) "best" must be one of: ["none" "best-effort" "restricted" "single-numa-node"]`},
		{Config{Policy: "none", Scope: "node"}, `topologyManagerScope (--topology-manager-scope) "node" must be one of: ["container" "pod"]`},
		{Config{Policy: "restricted", Scope: "pod", Options: map[string]string{"fast": "true"}}, "fast: unknown option"},
		{Config{Policy: "restricted", Scope: "pod", Options: map[string]string{preferClosest: "yes"}}, "want true or false"},
		{Config{Policy: "restricted", Scope: "pod", Options: map[string]string{maxAllowable: "7"}}, "want a number from 8"},
		{Config{Policy: "restricted", Scope: "pod", Nodes: all}, "the machine has 9 NUMA nodes, more than 8: raise max-allowable-numa-nodes"},
		{Config{Policy: "restricted", Scope: "pod", Nodes: all, Options: map[string]string{maxAllowable: "9"}}, ""},
		{Config{Policy: "restricted", Scope: "pod", Nodes: NodesOf(0), Options: map[string]string{preferClosest: "true"}}, "does not tell how far NUMA node 0 is"},
	} {
		if _, err := New(tc.cfg); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v, want %q", tc.cfg, err, tc.want)
		}
	}
}

// yes and no are hints that are preferred, and that are not.
func yes(ids ...int) Hint { return Hint{NodesOf(ids...), true} }
func no(ids ...int) Hint  { return Hint{NodesOf(ids...), false} }

func manager(t *testing.T, policy string, nodes int, options ...string) *Manager {
	t.Helper()
	cfg := Config{Policy: policy, Scope: "container", Options: map[string]string{}, Distances: map[int][]int{}}
	for _, o := range options {
		cfg.Options[o] = "true"
	}
	for id := range nodes {
		cfg.Nodes |= NodesOf(id)
		for to := range nodes {
			cfg.Distances[id] = append(cfg.Distances[id], 10+5*((id^to)&1)+20*((id^to)>>1)) // pairs of even and odd ones are near
		}
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMerge has documented behaviour: what all resources have in common, the narrowest of what is preferred, and whether
// the policy admits it.
func TestMerge(t *testing.T) {
	for name, tc := range map[string]struct {
		hints [][]Hint
		best  Hint // of best-effort
		// restricted and single say whether these policies admit it.
		restricted, single bool
	}{
		"nothing is asked for":            {nil, yes(0, 1), true, true},
		"no preference":                   {[][]Hint{{{Preferred: true}}}, yes(0, 1), true, true},
		"impossible":                      {[][]Hint{{{}}}, no(0, 1), false, false},
		"one resource":                    {[][]Hint{{yes(1), yes(0), no(0, 1)}}, yes(0), true, true},
		"they agree on one":               {[][]Hint{{yes(0), yes(1), no(0, 1)}, {yes(1), no(0, 1)}}, yes(1), true, true},
		"beside no preference":            {[][]Hint{{{Preferred: true}}, {yes(1)}}, yes(1), true, true},
		"they do not agree":               {[][]Hint{{yes(0)}, {yes(1)}}, no(0, 1), false, false},
		"both need both":                  {[][]Hint{{yes(0, 1)}, {yes(0, 1)}}, yes(0, 1), true, false},
		"one needs both":                  {[][]Hint{{yes(0, 1)}, {yes(0), yes(1), no(0, 1)}}, no(0, 1), false, false},
		"what is preferred is in use":     {[][]Hint{{no(0, 1)}, {yes(0), no(0, 1)}}, no(0, 1), false, false},
		"one resource cannot, others can": {[][]Hint{{{}}, {yes(1)}}, no(1), false, false},
	} {
		for policy, admits := range map[string]bool{"best-effort": true, "restricted": tc.restricted, "single-numa-node": tc.single} {
			got, ok := manager(t, policy, 2).merge(tc.hints)
			if ok != admits || policy != "single-numa-node" && got != tc.best {
				t.Errorf("%s: %s: %v, %v; want %v, %v", name, policy, got, ok, tc.best, admits)
			}
		}
	}
	if got, ok := manager(t, "single-numa-node", 1).merge([][]Hint{{yes(0)}}); !ok || got != (Hint{Preferred: true}) {
		t.Errorf("a machine with one node: %v, %v", got, ok)
	}
	pairs := [][]Hint{{yes(0, 2), yes(1, 2), yes(2, 3)}}
	if got, _ := manager(t, "best-effort", 4).merge(pairs); got != yes(0, 2) {
		t.Errorf("the lowest numbers: %v", got)
	}
	if got, _ := manager(t, "best-effort", 4, preferClosest).merge(pairs); got != yes(2, 3) {
		t.Errorf("the closest ones: %v", got)
	}
}

// permute calls f with one hint of each resource, in all combinations.
func permute(all [][]Hint, some []Hint, f func([]Hint)) {
	if len(all) == 0 {
		f(some)
		return
	}
	for _, h := range all[0] {
		permute(all[1:], append(slices.Clone(some), h), f)
	}
}

// TestMergeLooksAtEverything compares it with trying all combinations, as upstream does, one after the other.
func TestMergeLooksAtEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // no secret
	for range 3000 {
		policy := []string{"best-effort", "restricted", "single-numa-node"}[r.IntN(3)]
		var options []string
		if r.IntN(2) == 0 {
			options = []string{preferClosest}
		}
		m := manager(t, policy, 4, options...)
		var all [][]Hint
		for range 1 + r.IntN(3) {
			var hints []Hint
			for range 1 + r.IntN(5) {
				hints = append(hints, Hint{Nodes(r.IntN(16)), r.IntN(3) > 0})
			}
			all = append(all, hints)
		}
		need := 0 // the most that a resource needs at least
		kept := make([][]Hint, len(all))
		for i, hints := range all {
			least := 0
			for _, h := range hints {
				if policy == "single-numa-node" && (!h.Preferred || h.Nodes.Count() > 1) {
					continue
				}
				kept[i] = append(kept[i], h)
				if n := h.Nodes.Count(); n > 0 && (least == 0 || n < least) {
					least = n
				}
			}
			need = max(need, least)
		}
		best, found := Hint{Nodes: m.cfg.Nodes}, false
		permute(kept, nil, func(some []Hint) {
			now := Hint{m.cfg.Nodes, true}
			var first Nodes
			for _, h := range some {
				now.Preferred = now.Preferred && h.Preferred
				if h.Nodes == 0 {
					continue
				}
				if first == 0 {
					first = h.Nodes
				}
				now.Preferred = now.Preferred && h.Nodes == first
				now.Nodes &= h.Nodes
			}
			if now.Nodes == 0 {
				return
			}
			if !found || m.order(now, best, need) < 0 {
				best, found = now, true
			}
		})
		if policy == "single-numa-node" && best.Nodes == m.cfg.Nodes {
			best.Nodes = 0
		}
		if got, _ := m.merge(all); got != best {
			t.Fatalf("%s %v: %v: %v, want %v", policy, options, all, got, best)
		}
	}
}

// source notes from where it was to take.
type source struct {
	hints map[string]Hints // by container, "" is the pod
	took  []string
	fail  string // the container for which it has nothing
}

func (s *source) Hints(c *v1.Container) Hints {
	if c == nil {
		return s.hints[""]
	}
	return s.hints[c.Name]
}

func (s *source) Take(c *v1.Container, h Hint) error {
	if c.Name == s.fail {
		return errors.New("there is nothing for " + c.Name)
	}
	s.took = append(s.took, fmt.Sprintf("%s:%s", c.Name, h.Nodes))
	return nil
}

func TestScopes(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "i"}}, Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
	for _, tc := range []struct {
		policy, scope string
		want          string
		err           string
	}{
		{"none", "container", "i: a: b:", ""},
		{"restricted", "container", "i:0-1 a:0 b:1", ""},
		{"restricted", "pod", "", "Resources cannot be allocated with Topology locality"},
		{"best-effort", "pod", "i:0-1 a:0-1 b:0-1", ""},
	} {
		m, err := New(Config{Policy: tc.policy, Scope: tc.scope, Nodes: NodesOf(0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		s := &source{hints: map[string]Hints{"": {"cpu": {no(0, 1)}}, "a": {"cpu": {yes(0)}}, "b": {"cpu": {yes(1)}, "memory": nil}}}
		err = m.Align(pod, s)
		if text := fmt.Sprint(err); tc.err == "" && err != nil || tc.err != "" && text != tc.err {
			t.Errorf("%s, %s: %v, want %q", tc.policy, tc.scope, err, tc.err)
		}
		if got := strings.Join(s.took, " "); got != tc.want {
			t.Errorf("%s, %s: %q, want %q", tc.policy, tc.scope, got, tc.want)
		}
	}
	s, last := &source{fail: "b"}, &source{}
	if err := (*Manager)(nil).Align(pod, s, last); err == nil || len(last.took) != 2 {
		t.Errorf("%v, %q", err, last.took)
	}
}

// TestRead reads what Linux tells of NUMA nodes.
func TestRead(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		file := filepath.Join(root, "devices/system/node", path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range []int{0, 2} {
		write(fmt.Sprintf("node%d/meminfo", id), fmt.Sprintf("Node %d MemTotal:       1000 kB\nNode %d MemFree:        500 kB", id, id))
		write(fmt.Sprintf("node%d/distance", id), []string{"10 21", "21 10"}[i])
		write(fmt.Sprintf("node%d/hugepages/hugepages-2048kB/nr_hugepages", id), "3")
	}
	m, err := Read(root, 1)
	if err != nil || m.Nodes != NodesOf(0, 2) || !slices.Equal(m.Distances[2], []int{21, 10}) ||
		m.Memory[2][v1.ResourceMemory] != 1000<<10 || m.Memory[0]["hugepages-2Mi"] != 6<<20 {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := Read(t.TempDir(), 77); err != nil || m.Nodes != NodesOf(0) || m.Memory[0][v1.ResourceMemory] != 77 {
		t.Errorf("%+v, %v", m, err)
	}
	write("node64/meminfo", "")
	if _, err := Read(root, 1); err == nil || !strings.Contains(err.Error(), "NUMA node 64") {
		t.Error(err)
	}
	if m, err := Read("/sys", 1); err != nil || m.Memory[m.Nodes.IDs()[0]][v1.ResourceMemory] == 0 {
		t.Errorf("this machine: %+v, %v", m, err)
	}
}

// BenchmarkMerge has three resources of a machine with eight nodes, for all of whose sets there is a hint: upstream looks at
// 255³ combinations.
func BenchmarkMerge(b *testing.B) {
	cfg := Config{Policy: "restricted", Scope: "container", Nodes: NodesOf(0, 1, 2, 3, 4, 5, 6, 7)}
	m, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	var hints []Hint
	for n := range cfg.Nodes.Subsets() {
		hints = append(hints, Hint{n, n.Count() == 1})
	}
	for b.Loop() {
		m.merge([][]Hint{hints, hints, hints})
	}
}
