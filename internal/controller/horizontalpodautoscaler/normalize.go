package horizontalpodautoscaler

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// sized is a number of replicas and when it was: what was recommended, or by how much the size changed.
type sized struct {
	n  int32
	at time.Time
}

// history is what an autoscaler remembers of its target. It lives in memory, as it does upstream:
// after a restart the present size counts as recommended, so nothing shrinks at once.
type history struct {
	recommended  []sized // before it was stabilised
	grew, shrank []sized
}

// since returns the entries after t.
func since(list []sized, t time.Time) []sized {
	var out []sized
	for _, s := range list {
		if s.at.After(t) {
			out = append(out, s)
		}
	}
	return out
}

func sum(list []sized) (total int64) {
	for _, s := range list {
		total += int64(s.n)
	}
	return total
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// bounds are what a recommendation is fitted into.
type bounds struct {
	current, least, most int32
	behavior             *autoscalingv2.HorizontalPodAutoscalerBehavior
	window               time.Duration // how long a target must not shrink, unless behavior says so
	now                  time.Time
}

// verdict is a size, and what to say about it.
type verdict struct {
	size    int32
	stable  told // AbleToScale
	limited bool
	limit   told // ScalingLimited
}

// told is the reason and the message of a condition.
type told struct{ reason, message string }

var (
	ready          = told{"ReadyForNewScale", "recommended size matches current size"}
	shrankLater    = told{"ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation"}
	growsLater     = told{"ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation"}
	withinRange    = told{"DesiredWithinRange", "the desired count is within the acceptable range"}
	tooFew         = told{"TooFewReplicas", "the desired replica count is less than the minimum replica count"}
	tooMany        = told{"TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	growsTooFast   = told{"ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
	shrinksTooFast = told{"ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
)

// normalize fits a recommended size into the bounds: first what was recommended lately counts, then
// the range and how fast the size may change. It returns the history with the recommendation.
func normalize(b bounds, h history, want int32) (verdict, history) {
	stabilized, stable := stabilize(b, h, want)
	v := verdict{stable: ready}
	if stabilized != want {
		v.stable = stable
	}
	if b.behavior == nil {
		v.size, v.limit = withinRules(b, stabilized)
	} else {
		v.size, v.limit = withinRates(b, h, stabilized)
	}
	v.limited = v.size != stabilized
	up, down := b.windows()
	h.recommended = append(since(h.recommended, b.now.Add(-max(up, down)-time.Second)), sized{want, b.now})
	return v, h
}

// windows returns how long recommendations count against growing and against shrinking.
func (b bounds) windows() (up, down time.Duration) {
	down = b.window
	if b.behavior == nil {
		return 0, down
	}
	if r := b.behavior.ScaleUp; r != nil && r.StabilizationWindowSeconds != nil {
		up = seconds(*r.StabilizationWindowSeconds)
	}
	if r := b.behavior.ScaleDown; r != nil && r.StabilizationWindowSeconds != nil {
		down = seconds(*r.StabilizationWindowSeconds)
	}
	return up, down
}

// stabilize lets a target shrink only to the highest, and grow only to the lowest recommendation of
// the windows.
func stabilize(b bounds, h history, want int32) (int32, told) {
	up, down := b.windows()
	lowest, highest := want, want
	for _, s := range since(h.recommended, b.now.Add(-up)) {
		lowest = min(lowest, s.n)
	}
	for _, s := range since(h.recommended, b.now.Add(-down)) {
		highest = max(highest, s.n)
	}
	if b.behavior == nil {
		return highest, shrankLater
	}
	why := shrankLater
	if want >= b.current {
		why = growsLater
	}
	return min(max(b.current, lowest), highest), why
}

// withinRules is for autoscalers without behaviour: a target may at most double, or grow to four.
func withinRules(b bounds, want int32) (int32, told) {
	const least, factor = 4, 2
	most, why := b.most, tooMany
	if limit := clamp(max(int64(b.current)*factor, least)); most > limit {
		most, why = limit, growsTooFast
	}
	switch {
	case want < b.least:
		return b.least, tooFew
	case want > most:
		return most, why
	}
	return want, withinRange
}

// withinRates is for autoscalers that say how fast the size may change.
func withinRates(b bounds, h history, want int32) (int32, told) {
	switch {
	case want > b.current:
		most, why := b.most, tooMany
		if limit := max(growthLimit(b, h), b.current, b.first()); most > limit {
			most, why = limit, growsTooFast
		}
		if want > most {
			return most, why
		}
	case want < b.current:
		least, why := b.least, tooFew
		if limit := min(shrinkLimit(b, h), b.current); least < limit {
			least, why = limit, shrinksTooFast
		}
		if want < least {
			return least, why
		}
	}
	return want, withinRange
}

// first returns the size that a target may get at once that was scaled to zero, of which no percentage is anything.
func (b bounds) first() int32 {
	rules := b.behavior.ScaleUp
	if b.current > 0 || rules != nil && rules.SelectPolicy != nil && *rules.SelectPolicy == autoscalingv2.DisabledPolicySelect {
		return 0
	}
	return 1
}

// atStart returns the size that the target had a period ago.
func atStart(b bounds, h history, period int32) int64 {
	begin := b.now.Add(-seconds(period))
	return int64(b.current) - sum(since(h.grew, begin)) + sum(since(h.shrank, begin))
}

// growthLimit returns to which size the policies let the target grow now. A percentage is rounded up,
// so that a small target grows at all.
func growthLimit(b bounds, h history) int32 {
	rules := b.behavior.ScaleUp
	return policyLimit(b, rules, func(p *autoscalingv2.HPAScalingPolicy) int64 {
		start := atStart(b, h, p.PeriodSeconds)
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start + int64(p.Value)
		}
		return ceilDiv(start*(100+int64(p.Value)), 100)
	}, func(a, b int64) int64 { return max(a, b) }, func(a, b int64) int64 { return min(a, b) })
}

// shrinkLimit returns to which size the policies let the target shrink now.
func shrinkLimit(b bounds, h history) int32 {
	rules := b.behavior.ScaleDown
	return policyLimit(b, rules, func(p *autoscalingv2.HPAScalingPolicy) int64 {
		start := atStart(b, h, p.PeriodSeconds)
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start - int64(p.Value)
		}
		return start * (100 - int64(p.Value)) / 100
	}, func(a, b int64) int64 { return min(a, b) }, func(a, b int64) int64 { return max(a, b) })
}

// policyLimit selects among what the policies allow: the most (by default), the least, or nothing.
func policyLimit(b bounds, rules *autoscalingv2.HPAScalingRules, limit func(*autoscalingv2.HPAScalingPolicy) int64, most, least func(a, b int64) int64) int32 {
	choose := most
	switch {
	case rules == nil || len(rules.Policies) == 0:
		return b.current // the API server does not let it come to this
	case rules.SelectPolicy != nil && *rules.SelectPolicy == autoscalingv2.DisabledPolicySelect:
		return b.current
	case rules.SelectPolicy != nil && *rules.SelectPolicy == autoscalingv2.MinChangePolicySelect:
		choose = least
	}
	out := limit(&rules.Policies[0])
	for i := range rules.Policies[1:] {
		out = choose(out, limit(&rules.Policies[i+1]))
	}
	return clamp(out)
}

// scaled returns the history after the size has changed. Only behaviour looks at changes.
func (h history) scaled(b bounds, to int32) history {
	if b.behavior == nil {
		return h
	}
	// A change counts for as long as the longest period of either direction: both look at both.
	begin := b.now.Add(-max(longest(b.behavior.ScaleUp), longest(b.behavior.ScaleDown)))
	h.grew, h.shrank = since(h.grew, begin), since(h.shrank, begin)
	if to > b.current {
		h.grew = append(h.grew, sized{to - b.current, b.now})
	} else {
		h.shrank = append(h.shrank, sized{b.current - to, b.now})
	}
	return h
}

func longest(r *autoscalingv2.HPAScalingRules) (out time.Duration) {
	if r == nil {
		return 0
	}
	for _, p := range r.Policies {
		out = max(out, seconds(p.PeriodSeconds))
	}
	return out
}

func ceilDiv(a, b int64) int64 {
	if a > 0 {
		return (a + b - 1) / b
	}
	return a / b
}

func clamp(n int64) int32 { return int32(max(0, min(n, math.MaxInt32))) }
