// Package waits says in plain words what a pod's worker waits for, while the pod starts and while
// it ends. It is pure; package server serves the result to `wherry explain`.
package waits

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Report explains what the worker of a pod last saw and decided.
func Report(uid types.UID, dump *podworker.Dump, now time.Time) report.Pod {
	out := report.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: report.APIVersion, Kind: report.Kind},
		UID:      uid, At: dump.At, Status: dump.Status, Gone: dump.Plan.Done || dump.Input.Forgotten,
	}
	r := &reporter{dump: dump, in: &dump.Input, now: now, out: &out}
	if r.in.Pod == nil {
		out.Starting = []report.Wait{{Step: "the kubelet's first look at the pod", Next: "its worker has its turn"}}
		return out
	}
	r.to = &out.Starting
	r.starting()
	r.to = &out.Ending
	r.ending()
	return out
}

// reporter builds one report.
type reporter struct {
	dump *podworker.Dump
	in   *podplan.Input
	now  time.Time
	out  *report.Pod
	// to is the list that waits are added to.
	to *[]report.Wait
}

func (r *reporter) wait(w report.Wait) { *r.to = append(*r.to, w) }

func (r *reporter) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}
