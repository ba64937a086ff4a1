package framework

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	fwk "k8s.io/kube-scheduler/framework"
)

// NotAvailable says why none of the nodes is available, with the number of nodes that gave each
// reason. absent is the status of the nodes that have none in statuses.
func NotAvailable(nodes int, statuses iter.Seq[*fwk.Status], absent *fwk.Status) string {
	count := map[string]int{}
	left, last, times := nodes, "", 0 // the last reason, and how often it was given in a row
	for st := range statuses {
		left--
		for _, r := range st.Reasons() {
			if r == last {
				times++
				continue
			}
			count[last] += times
			last, times = r, 1
		}
	}
	if count[last] += times; count[""] == 0 {
		delete(count, "")
	}
	if left > 0 {
		for _, r := range absent.Reasons() {
			count[r] += left
		}
	}
	reasons := make([]string, 0, len(count))
	for r, n := range count {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(reasons)
	msg := fmt.Sprintf("0/%d nodes are available:", nodes)
	if len(reasons) > 0 {
		msg += " " + strings.Join(reasons, ", ") + "."
	}
	return msg
}
