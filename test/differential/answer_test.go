package main

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Two lines of each scheduler's log, and what is not to be taken for one.
const log = `I1125 11 schedule_one.go:123] "Attempting to schedule pod" pod="ns-0/p"
I1125 11 resource_allocation.go:161] "Listed internal info" pod="ns-0/p" node="n-0" resourceScore=44
I1125 11 schedule_one.go:941] "Plugin scored node for pod" pod="ns-0/p" pod="ns-0/p" plugin="Xy" node="n-0" score=300
I1125 11 schedule_one.go:998] "Calculated node's final score for pod" pod="ns-0/p" pod="ns-0/p" node="n-0" score=344
I1125 22 schedule_one.go:377] "Plugin scored node for pod" pod="ns-0/p" plugin="Xy" node="n-1" score=-7
I1125 22 schedule_one.go:379] "Calculated node's final score for pod" pod="ns-0/p" node="n-1" score=-7
I1125 22 schedule_one.go:379] "Calculated node's final score for pod" pod="ns-0/p-again" node="n-2" score=9
`

func TestScoresOf(t *testing.T) {
	got := scoresOf(log, "ns-0/p")
	if len(got) != 2 || got["n-0"].Total != 344 || got["n-0"].Plugins["Xy"] != 300 ||
		got["n-1"].Total != -7 || got["n-1"].Plugins["Xy"] != -7 {
		t.Errorf("the log has the scores %v", got)
	}
	if got := scoresOf(log, "ns-1/p"); got != nil {
		t.Errorf("the log has the scores %v of a pod that it does not mention", got)
	}
}

// scores returns an answer with nodes a, b and so on, whose one plugin gives these scores.
func scores(node string, of ...int64) answer {
	a := answer{Node: node, Scores: map[string]score{}}
	for i, s := range of {
		a.Scores[string(rune('a'+i))] = score{Total: s, Plugins: map[string]int64{"X": s}}
	}
	return a
}

func preempting(node string, victims ...string) answer {
	return answer{Nominated: node, Victims: victims}
}

func TestDifferences(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ours, theirs answer
		except       []string
		want         string // the beginning of the first difference, or nothing
	}{
		{name: "the same", ours: scores("a", 3, 2), theirs: scores("a", 3, 2)},
		{name: "a tie", ours: scores("a", 3, 3, 2), theirs: scores("b", 3, 3, 2)},
		{name: "the only node", ours: answer{Node: "a"}, theirs: answer{Node: "a"}},
		{name: "another only node", ours: answer{Node: "a"}, theirs: answer{Node: "b"}, want: "feasible nodes"},
		{name: "one node more", ours: scores("a", 3, 2), theirs: scores("a", 3, 2, 1), want: "feasible nodes"},
		{name: "another score", ours: scores("a", 3, 2), theirs: scores("a", 3, 1), want: "score of X for b"},
		{name: "a score that may differ", ours: scores("a", 3, 2), theirs: scores("b", 3, 4), except: []string{"X"}},
		{name: "not the best", ours: scores("b", 3, 2), theirs: scores("a", 3, 2), want: "b is chosen"},
		{name: "only one has a node", ours: scores("a", 3, 2), theirs: answer{Why: "0/2"}, want: "feasible nodes"},
		{name: "another reason", ours: answer{Why: "1 no cpu"}, theirs: answer{Why: "1 Too many pods"}, want: "why"},
		{
			name: "upstream's DynamicResources failed",
			ours: answer{Why: "0/1: no claim. preemption: 1 not helpful."}, theirs: answer{Why: "0/1: no claim. not found"},
		},
		{
			name: "other victims", want: "preemption",
			ours: preempting("a", "ns/low-0"), theirs: preempting("a", "ns/low-1"),
		},
		{
			name: "victims of a node that is as good",
			ours: preempting("a", "ns/low-0"), theirs: preempting("b", "ns/low-1"),
		},
		{
			name: "victims of a node that is not as good", want: "preemption",
			ours: preempting("a", "ns/low-0"), theirs: preempting("b", "ns/high"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := differences(tt.ours, tt.theirs, tt.except, func(a, b answer) bool { return equallyGood(a, b, victims()) })
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || !strings.HasPrefix(got[0], tt.want)) {
				t.Errorf("they differ in %q, want %q", got, tt.want)
			}
		})
	}
}

// victims are pods that started at the same time.
func victims() map[string]*v1.Pod {
	out := map[string]*v1.Pod{}
	for name, priority := range map[string]int32{"ns/low-0": 0, "ns/low-1": 0, "ns/high": 5} {
		p := &v1.Pod{Spec: v1.PodSpec{Priority: &priority}}
		p.Status.StartTime = new(metav1.NewTime(born))
		out[name] = p
	}
	return out
}

func TestObjectOfPath(t *testing.T) {
	for path, want := range map[string][]string{
		"/api/v1/namespaces/ns/pods/p":                                 {"pods", "ns/p", ""},
		"/api/v1/namespaces/ns/pods/p/binding":                         {"pods", "ns/p", "binding"},
		"/api/v1/namespaces/ns/pods":                                   {"", "", ""},
		"/api/v1/nodes/n":                                              {"", "", ""},
		"/apis/events.k8s.io/v1/namespaces/ns/events":                  {"", "", ""},
		"/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/many": {"podgroups", "ns/many", ""},
	} {
		resource, name, sub := objectOfPath(path)
		if got := []string{resource, name, sub}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestSeedsPlayTheSameAgain: what a failure prints is of no use if its seed makes another cluster.
func TestSeedsPlayTheSameAgain(t *testing.T) {
	for seed := range uint64(20) {
		a, b := roll(seed, 0).cluster(), roll(seed, 0).cluster()
		if len(a) != len(b) {
			t.Fatalf("seed %d: %d objects, then %d", seed, len(a), len(b))
		}
		for i := range a {
			if one, other := yamlOf(t, a[i]), yamlOf(t, b[i]); one != other {
				t.Fatalf("seed %d:\n%s\nthen\n%s", seed, one, other)
			}
		}
	}
}

func yamlOf(t *testing.T, o object) string {
	t.Helper()
	content, err := asContent(o)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := asYAML(content)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}
