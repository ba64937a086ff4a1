package job

import (
	"math"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// noIndex is the index of a pod that has none, or none that anybody could read.
const noIndex = -1

// span is a range of indexes, both ends included.
type span struct{ first, last int }

// indexes is a set of completion indexes: spans in rising order that neither overlap nor touch.
type indexes []span

// parseIndexes reads what String wrote. Indexes from limit on do not count, nor does what cannot be
// read.
func parseIndexes(text string, limit int) indexes {
	var out indexes
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		last = min(last, limit-1)
		if err1 != nil || err2 != nil || first < 0 || first > last {
			continue
		}
		if n := len(out); n == 0 || out[n-1].first <= first {
			out = out.add(span{first, last})
			continue
		}
		out = out.union(indexes{{first, last}})
	}
	return out
}

// indexesOf returns the set of the numbers, which are in any order.
func indexesOf(numbers []int) indexes {
	slices.Sort(numbers)
	var out indexes
	for _, n := range numbers {
		out = out.add(span{n, n})
	}
	return out
}

// add adds a span that does not start before the last one of the set. It may change the set.
func (x indexes) add(s span) indexes {
	if n := len(x); n > 0 && s.first <= x[n-1].last+1 {
		x[n-1].last = max(x[n-1].last, s.last)
		return x
	}
	return append(x, s)
}

// union returns a new set with the indexes of both.
func (x indexes) union(y indexes) indexes {
	out := make(indexes, 0, len(x)+len(y))
	for len(x) > 0 || len(y) > 0 {
		if len(y) == 0 || len(x) > 0 && x[0].first < y[0].first {
			out, x = out.add(x[0]), x[1:]
		} else {
			out, y = out.add(y[0]), y[1:]
		}
	}
	return out
}

// common returns how many indexes are in both sets.
func (x indexes) common(y indexes) int {
	n := 0
	for len(x) > 0 && len(y) > 0 {
		n += max(0, min(x[0].last, y[0].last)-max(x[0].first, y[0].first)+1)
		if x[0].last < y[0].last {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return n
}

// len returns how many indexes there are.
func (x indexes) len() int {
	n := 0
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

func (x indexes) has(i int) bool {
	at, found := slices.BinarySearchFunc(x, i, func(s span, i int) int { return s.first - i })
	return found || at > 0 && i <= x[at-1].last
}

// missing returns the first indexes below limit that are not in the set, at most n.
func (x indexes) missing(n, limit int) []int {
	var out []int
	next := 0
	for _, s := range append(slices.Clone(x), span{limit, limit}) {
		for ; next < min(s.first, limit) && len(out) < n; next++ {
			out = append(out, next)
		}
		next = max(next, s.last+1)
	}
	return out
}

// String returns the form that the status has: "0,3-5". Two neighbours are no range.
func (x indexes) String() string {
	var b strings.Builder
	for i, s := range x {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.first))
		switch s.last - s.first {
		case 0:
			continue
		case 1:
			b.WriteByte(',')
		default:
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(s.last))
	}
	return b.String()
}

// indexOf returns the completion index of a pod.
func indexOf(p *v1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

// failuresBefore returns how often the index of a pod failed before the pod was created: those that
// count, and those that a rule ignored.
func failuresBefore(p *v1.Pod) (counted, ignored int32) {
	const ofCounted, ofIgnored = batchv1.JobIndexFailureCountAnnotation, batchv1.JobIndexIgnoredFailureCountAnnotation
	return count32(p.Annotations[ofCounted]), count32(p.Annotations[ofIgnored])
}

// count32 reads a number that anybody may have written. It is 0 if it is none, or none that is
// possible.
func count32(text string) int32 {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int32(n)
}
