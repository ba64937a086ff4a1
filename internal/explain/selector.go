package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// mostNear is how many sorts of pods are named that a selector nearly matches.
const mostNear = 3

// miss is in what pods differ from a selector that matches them but for one label.
type miss struct {
	key, want, have string
	has             bool
}

func (m miss) String() string {
	if !m.has {
		return fmt.Sprintf("without the label %s", m.key)
	}
	return fmt.Sprintf("%s=%s instead of %s", m.key, m.have, m.want)
}

// alike reports whether somebody may have mistaken one value for the other.
func (m miss) alike() bool {
	return m.has && distance(m.want, m.have) <= max(2, len(m.want)/2)
}

// near says which pods have all labels of the selector but one, those whose label is most like the one
// that is wanted first. If the selector has only one label, a pod is near if it has one that looks like it.
func near(selector map[string]string, list []*v1.Pod) (out []string) {
	byMiss := map[miss][]*v1.Pod{}
	for _, p := range list {
		if m, ok := missOf(selector, p.Labels); ok && (len(selector) > 1 || m.alike()) {
			byMiss[m] = append(byMiss[m], p)
		}
	}
	order := slices.SortedFunc(maps.Keys(byMiss), func(a, b miss) int {
		return cmp.Or(cmp.Compare(distance(a.want, a.have), distance(b.want, b.have)),
			cmp.Compare(len(byMiss[b]), len(byMiss[a])), cmp.Compare(a.String(), b.String()))
	})
	for _, m := range order[:min(mostNear, len(order))] {
		its := byMiss[m]
		slices.SortFunc(its, func(a, b *v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, fmt.Sprintf("%s (%s)", named(its), m))
	}
	return out
}

// missOf returns the one pair that the labels lack of a selector, if it is exactly one.
func missOf(selector, labels map[string]string) (m miss, one bool) {
	n := 0
	for k, want := range selector {
		if have, ok := labels[k]; !ok || have != want {
			m, n = miss{k, want, have, ok}, n+1
		}
	}
	return m, n == 1
}

// distance returns how many characters have to be changed, added or taken away to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
