package scheduler

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/scheduler/framework"
)

const (
	// keptChoices is for how many pods it is remembered how their node was chosen.
	keptChoices = 128
	// keptScores is how many of the best nodes are remembered of each.
	keptScores = 5
)

// choices are the last ones, in a ring.
type choices struct {
	mu   sync.Mutex
	ring [keptChoices]choice
	next int
}

// choice is how a pod's node was chosen. Its lists are written anew when its place in the ring is used again.
type choice struct {
	uid             types.UID
	at              time.Time
	nodes, feasible int
	node            string
	best            []ranked
}

// ranked is a node with its scores, in the order of the plugins.
type ranked struct {
	node    string
	total   int64
	plugins []framework.Scored
}

// keep remembers a choice. scores are the totals of the feasible nodes; nil if there was only one.
func (c *choices) keep(a *attempt, nodes int, feasible []fwk.NodeInfo, chosen int, scores []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.ring[c.next%keptChoices]
	c.next++
	kept.uid, kept.at, kept.nodes, kept.feasible, kept.node = a.pod().UID, a.start, nodes, len(feasible), feasible[chosen].Node().Name
	kept.best = kept.best[:0]
	for _, i := range best(scores, chosen) {
		n := len(kept.best)
		if n == cap(kept.best) {
			kept.best = append(kept.best, ranked{})
		} else {
			kept.best = kept.best[:n+1]
		}
		r := &kept.best[n]
		r.node, r.total = feasible[i].Node().Name, scores[i]
		r.plugins = a.profile.LastScores(a.state, i, r.plugins[:0])
	}
}

// best returns the places of the highest scores, that of the chosen node first.
func best(scores []int64, chosen int) []int {
	if len(scores) == 0 {
		return nil
	}
	var room [keptScores]int
	out := append(room[:0], chosen)
	for i, score := range scores {
		if i == chosen || len(out) == keptScores && score <= scores[out[keptScores-1]] {
			continue
		}
		at := len(out)
		for at > 1 && scores[out[at-1]] < score {
			at--
		}
		if len(out) == keptScores {
			out = out[:keptScores-1]
		}
		out = slices.Insert(out, at, i)
	}
	return out
}

// of returns how a pod's node was chosen, or nil.
func (c *choices) of(uid types.UID) *report.Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	var last *choice
	for i := range c.ring {
		if k := &c.ring[i]; k.uid == uid && uid != "" && (last == nil || k.at.After(last.at)) {
			last = k
		}
	}
	if last == nil {
		return nil
	}
	out := &report.Choice{At: last.at.UTC(), Node: last.node, Nodes: last.nodes, Feasible: last.feasible}
	for _, r := range last.best {
		score := report.NodeScore{Node: r.node, Total: r.total}
		for _, p := range r.plugins {
			score.Parts = append(score.Parts, report.PluginScore{Plugin: p.Plugin, Score: p.Score, Weight: p.Weight})
		}
		out.Best = append(out.Best, score)
	}
	return out
}
