package framework

import (
	"fmt"
	"slices"
	"strings"

	fwk "k8s.io/kube-scheduler/framework"
)

// NotAvailable says why none of the nodes is available, with the number of nodes that gave each
// reason. absent is the status of the nodes that are not in statuses.
func NotAvailable(nodes int, statuses map[string]*fwk.Status, absent *fwk.Status) string {
	count := map[string]int{}
	for _, st := range statuses {
		for _, r := range st.Reasons() {
			count[r]++
		}
	}
	if left := nodes - len(statuses); left > 0 {
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
