package main

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// answer is what a scheduler says about a pod: a node with what it was chosen among, or why there is none.
type answer struct {
	Node   string           `json:"node,omitempty"`
	Scores map[string]score `json:"scores,omitempty"` // of the feasible nodes; none if only one is

	Why       string   `json:"why,omitempty"`
	Nominated string   `json:"nominated,omitempty"`
	Victims   []string `json:"victims,omitempty"`
}

// score is a node's.
type score struct {
	Total   int64            `json:"total"`
	Plugins map[string]int64 `json:"plugins"` // each times its weight
}

var (
	scored = regexp.MustCompile(`\] "(Plugin scored node|Calculated node's final score) for pod" (.*)$`)
	pair   = regexp.MustCompile(`(\w+)=(?:"([^"]*)"|(\S+))`)
)

// scoresOf returns the scores that a log has for a pod, namespace/name, by node. Both log in the same words:
//
//	I1124 20:59:01.000000 7 schedule_one.go:940] "Plugin scored node for pod" pod="ns/p" plugin="X" node="n" score=7
//	I1124 20:59:01.000001 7 schedule_one.go:997] "Calculated node's final score for pod" pod="ns/p" node="n" score=9
func scoresOf(log, pod string) map[string]score {
	var out map[string]score
	for line := range strings.Lines(log) {
		m := scored.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		values := map[string]string{}
		for _, kv := range pair.FindAllStringSubmatch(m[2], -1) {
			values[kv[1]] = kv[2] + kv[3]
		}
		n, err := strconv.ParseInt(values["score"], 10, 64)
		if err != nil || values["pod"] != pod {
			continue
		}
		s, known := out[values["node"]]
		if !known {
			s.Plugins = map[string]int64{}
		}
		if plugin := values["plugin"]; plugin != "" {
			s.Plugins[plugin] = n
		} else {
			s.Total = n
		}
		if out == nil {
			out = map[string]score{}
		}
		out[values["node"]] = s
	}
	return out
}

// victimsIn returns how many pods a scheduler says that it preempts.
func victimsIn(message string) int {
	m := placement.FindStringSubmatch(message)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[2])
	if err != nil {
		return 0
	}
	return n
}

var placement = regexp.MustCompile(`(found a potential placement for pod) on node \S+, preempting (\d+) victims$`)

// sensible returns a message without nodes: that on which a search for devices failed, as another one may have come first,
// and that whose pods are preempted, which is compared by itself.
func sensible(message string) string {
	message = placement.ReplaceAllString(message, "$1, preempting $2 victims")
	if before, _, found := strings.Cut(message, noSearch); found {
		return before + noSearch + " …"
	}
	return message
}

// noSearch begins the message, or its part about preemption, of a search for devices that failed.
const noSearch = `running "DynamicResources" filter plugin:`

// feasible returns the nodes that a scheduler has found to be feasible, sorted.
func (a answer) feasible() []string {
	if a.Scores == nil && a.Node != "" {
		return []string{a.Node}
	}
	return slices.Sorted(maps.Keys(a.Scores))
}

// without returns the answer without a plugin's scores.
func (a answer) without(plugin string) answer {
	scores := map[string]score{}
	for node, s := range a.Scores {
		kept := maps.Clone(s.Plugins)
		delete(kept, plugin)
		scores[node] = score{s.Total - s.Plugins[plugin], kept}
	}
	if a.Scores != nil {
		a.Scores = scores
	}
	return a
}

// best returns the nodes with the highest score, sorted.
func (a answer) best() []string {
	if a.Scores == nil {
		return a.feasible()
	}
	top := int64(math.MinInt64)
	for _, s := range a.Scores {
		top = max(top, s.Total)
	}
	return slices.DeleteFunc(a.feasible(), func(n string) bool { return a.Scores[n].Total != top })
}

// differences returns in what two answers differ. except are plugins whose scores may differ. tie says whether two
// preemptions are equally good.
func differences(ours, theirs answer, except []string, tie func(ours, theirs answer) bool) []string {
	if noDomain(theirs.Why) {
		return nil
	}
	var out []string
	differ := func(what string, a, b any) { out = append(out, fmt.Sprintf("%s: ours %v, upstream's %v", what, a, b)) }
	for _, a := range []answer{ours, theirs} {
		if a.Node != "" && !slices.Contains(a.best(), a.Node) {
			out = append(out, a.Node+" is chosen, and has not the best score")
		}
	}
	for _, plugin := range except {
		ours, theirs = ours.without(plugin), theirs.without(plugin)
	}
	if a, b := ours.feasible(), theirs.feasible(); !slices.Equal(a, b) {
		differ("feasible nodes", a, b)
	}
	for _, n := range ours.feasible() {
		a, b := ours.Scores[n], theirs.Scores[n]
		for _, plugin := range slices.Sorted(maps.Keys(union(a.Plugins, b.Plugins))) {
			// A plugin that has nothing to say about a pod may be skipped, or give everybody the same.
			if a.Plugins[plugin] != b.Plugins[plugin] {
				differ("score of "+plugin+" for "+n, a.Plugins[plugin], b.Plugins[plugin])
			}
		}
		if a.Total != b.Total {
			differ("score for "+n, a.Total, b.Total)
		}
	}
	if a, b := ours.best(), theirs.best(); !slices.Equal(a, b) {
		differ("best nodes", a, b)
	}
	if !sameReason(ours.Why, theirs.Why) {
		differ("why", strconv.Quote(ours.Why), strconv.Quote(theirs.Why))
	}
	if (ours.Nominated != theirs.Nominated || !slices.Equal(ours.Victims, theirs.Victims)) && !tie(ours, theirs) {
		differ("preemption", fmt.Sprint(ours.Nominated, ours.Victims), fmt.Sprint(theirs.Nominated, theirs.Victims))
	}
	return out
}

// sameReason reports whether both say the same. If another plugin's PreFilter rejects the pod, the PostFilter of
// upstream's DynamicResources fails for want of what its own would have noted, with these words, and preemption is not
// tried. Ours says in such a case that preemption is not helpful.
func sameReason(ours, theirs string) bool {
	if cut, failed := strings.CutSuffix(theirs, ". not found"); failed {
		ours, _, _ = strings.Cut(ours, ". preemption: ")
		theirs = cut
	}
	return ours == theirs
}

// noDomain reports whether upstream's scheduler could not look for victims: it cannot as long as a pod group has a pod on
// a node that is gone.
func noDomain(why string) bool { return strings.Contains(why, "failed to get node info for node") }

func union(a, b map[string]int64) map[string]int64 {
	out := maps.Clone(a)
	if out == nil {
		return b
	}
	maps.Copy(out, b)
	return out
}
