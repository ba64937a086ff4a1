package deployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// after returns the status that a plan leaves behind.
func after(f facts) appsv1.DeploymentStatus {
	if p := planFor(f); p.status != nil {
		return p.status.Status
	}
	return f.deployment.Status
}

func TestCounts(t *testing.T) {
	unknown := func(rs *appsv1.ReplicaSet) { rs.Status.TerminatingReplicas = nil }
	for name, tt := range map[string]struct {
		facts facts
		want  string
	}{
		"none":                     {plain(web("v1", 3)), "0 updated 0 ready 0 available 0 unavailable 3 terminating 0"},
		"one":                      {plain(web("v1", 3), set("v1", 3, has(3, 2))), "3 updated 3 ready 2 available 2 unavailable 1 terminating 0"},
		"in a rollout":             {plain(web("v2", 10), set("v1", 8), set("v2", 5, has(4, 0), func(rs *appsv1.ReplicaSet) { rs.Status.TerminatingReplicas = new(int32(2)) })), "12 updated 4 ready 8 available 8 unavailable 5 terminating 2"},
		"more than it should have": {plain(web("v1", 1), set("v1", 1, has(3, 3))), "3 updated 3 ready 3 available 3 unavailable 0 terminating 0"},
		"one does not tell":        {plain(web("v1", 3), set("v1", 3, unknown), set("v2", 0)), "3 updated 3 ready 3 available 3 unavailable 0 terminating ?"},
		"one is new":               {plain(web("v1", 3), set("v1", 3), set("v2", 0, unknown, func(rs *appsv1.ReplicaSet) { rs.Status.ObservedGeneration = 0 })), "3 updated 3 ready 3 available 3 unavailable 0 terminating 0"},
		"being deleted":            {plain(web("v1", 3, dying), set("v1", 3)), "3 updated 3 ready 3 available 3 unavailable 0 terminating 0"},
		"paused":                   {plain(web("v2", 3, paused), set("v1", 3, sized(3, 4))), "3 updated 0 ready 3 available 3 unavailable 0 terminating 0"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.facts.deployment.Generation = 5
			st := after(tt.facts)
			ending := "?"
			if n := st.TerminatingReplicas; n != nil {
				ending = fmt.Sprint(*n)
			}
			got := fmt.Sprintf("%d updated %d ready %d available %d unavailable %d terminating %s",
				st.Replicas, st.UpdatedReplicas, st.ReadyReplicas, st.AvailableReplicas, st.UnavailableReplicas, ending)
			if got != tt.want || st.ObservedGeneration != 5 {
				t.Errorf("generation %d, %s\nwant %s", st.ObservedGeneration, got, tt.want)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	noDeadline := func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }
	fails := func(message string) setChange {
		return func(rs *appsv1.ReplicaSet) {
			rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: "FailedCreate", Message: message, LastTransitionTime: ago(time.Minute)}}
		}
	}
	created := func(d *appsv1.Deployment) { progressing(v1.ConditionTrue, newReplicaSetCreated, time.Minute)(d) }
	for name, tt := range map[string]struct {
		facts facts
		want  []string // type status reason: message (update/transition, seconds ago)
	}{
		"just created": {plain(web("v1", 0, noDeadline)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"too few are available": {plain(web("v1", 4, noDeadline), set("v1", 4, has(4, 2))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)"}},
		"just enough are": {plain(web("v1", 4, noDeadline), set("v1", 4, has(4, 3))), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"recreate, all have to be": {plain(web("v1", 4, noDeadline, recreate), set("v1", 4, has(4, 3))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)"}},
		"a new set": {plain(web("v2", 3, counts(3, 3, 3, 3)), set("v1", 3)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			`Progressing True NewReplicaSetCreated: Created new replica set "NEW" (0/0)`}},
		"a known set": {plain(web("v1", 3, counts(3, 3, 2, 2)), set("v1", 3, has(3, 2))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True FoundNewReplicaSet: Found new replica set "v1" (0/0)`}},
		"pods come up": {plain(web("v1", 3, created, counts(3, 3, 1, 1)), set("v1", 3, has(3, 2))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True ReplicaSetUpdated: ReplicaSet "v1" is progressing. (0/60)`}},
		"old pods go": {plain(web("v2", 3, created, counts(4, 1, 4, 4)), set("v1", 2), set("v2", 1)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			`Progressing True ReplicaSetUpdated: ReplicaSet "v2" is progressing. (0/60)`}},
		"recreate, the old go": {plain(web("v2", 3, recreate, created, counts(3, 0, 3, 3)), set("v1", 0, has(1, 1))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True ReplicaSetUpdated: Deployment "web" is progressing. (0/60)`}},
		"complete": {plain(web("v1", 3, created, counts(3, 3, 2, 2)), set("v1", 3)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			`Progressing True NewReplicaSetAvailable: ReplicaSet "v1" has successfully progressed. (0/60)`}},
		"a pod fails after that": {plain(web("v1", 3, done), set("v1", 3, has(3, 1))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True NewReplicaSetAvailable:  (3600/3600)`}},
		"nothing moves": {plain(web("v1", 3, counts(3, 3, 0, 0), progressing(v1.ConditionTrue, replicaSetUpdated, 599*time.Second)), set("v1", 3, has(3, 0))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True ReplicaSetUpdated:  (599/599)`}},
		"nothing moves for too long": {plain(web("v1", 3, counts(3, 3, 0, 0), progressing(v1.ConditionTrue, replicaSetUpdated, 601*time.Second)), set("v1", 3, has(3, 0))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing False ProgressDeadlineExceeded: ReplicaSet "v1" has timed out progressing. (0/0)`}},
		"it moves after all": {plain(web("v1", 3, counts(3, 3, 0, 0), progressing(v1.ConditionFalse, progressDeadlineExceeded, time.Minute)), set("v1", 3, has(3, 1))), []string{
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)",
			`Progressing True ReplicaSetUpdated: ReplicaSet "v1" is progressing. (0/0)`}},
		"a new template after success": {plain(web("v2", 3, done), set("v1", 3)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			`Progressing True NewReplicaSetCreated: Created new replica set "NEW" (0/3600)`}},
		"paused": {plain(web("v1", 3, paused, created), set("v1", 3, sized(3, 4))), []string{
			"Progressing Unknown DeploymentPaused: Deployment is paused (0/0)",
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"still paused": {plain(web("v1", 3, paused, progressing(v1.ConditionUnknown, deploymentPaused, time.Hour)), set("v1", 3, sized(3, 4))), []string{
			"Progressing Unknown DeploymentPaused:  (3600/3600)",
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"resumed": {plain(web("v1", 3, counts(3, 3, 1, 1), progressing(v1.ConditionUnknown, deploymentPaused, time.Hour)), set("v1", 3, has(3, 1))), []string{
			"Progressing Unknown DeploymentResumed: Deployment is resumed (0/3600)",
			"Available False MinimumReplicasUnavailable: Deployment does not have minimum availability. (0/0)"}},
		"paused, having failed": {plain(web("v1", 3, paused, progressing(v1.ConditionFalse, progressDeadlineExceeded, time.Hour)), set("v1", 3, sized(3, 4))), []string{
			"Progressing False ProgressDeadlineExceeded:  (3600/3600)",
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"no deadline any more": {plain(web("v1", 3, noDeadline, done), set("v1", 3)), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)"}},
		"pods cannot be created": {plain(web("v2", 3, noDeadline), set("v1", 3, fails("old")), set("v2", 1, has(0, 0), fails("new"))), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			"ReplicaFailure True FailedCreate: new (60/60)"}},
		"those of an old set": {plain(web("v2", 3, noDeadline), set("v1", 3, fails("old")), set("v2", 1, has(0, 0))), []string{
			"Available True MinimumReplicasAvailable: Deployment has minimum availability. (0/0)",
			"ReplicaFailure True FailedCreate: old (60/60)"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := planFor(tt.facts)
			fresh := "-"
			if len(p.steps) > 0 && p.steps[0].create != nil {
				fresh = p.steps[0].create.Name
			}
			var got []string
			for _, c := range p.status.Status.Conditions {
				got = append(got, fmt.Sprintf("%s %s %s: %s (%.0f/%.0f)", c.Type, c.Status, c.Reason, strings.ReplaceAll(c.Message, fresh, "NEW"),
					now.Sub(c.LastUpdateTime.Time).Seconds(), now.Sub(c.LastTransitionTime.Time).Seconds()))
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if a, b := strings.Join(got, "\n"), strings.Join(tt.want, "\n"); a != b {
				t.Errorf("%s\nwant\n%s", a, b)
			}
			// Once that is written there is nothing more to say.
			again := tt.facts
			again.deployment = p.status
			if len(p.steps) == 0 {
				if next := planFor(again); next.status != nil {
					t.Errorf("a second plan writes again: %+v\nafter %+v", next.status.Status, p.status.Status)
				}
			}
		})
	}
}

func TestRecheck(t *testing.T) {
	stuck := func(d time.Duration) facts {
		return plain(web("v1", 3, counts(3, 3, 0, 0), progressing(v1.ConditionTrue, replicaSetUpdated, d)), set("v1", 3, has(3, 0)))
	}
	for name, tt := range map[string]struct {
		facts facts
		want  time.Duration
	}{
		"just begun":   {plain(web("v1", 3)), 601 * time.Second},
		"in between":   {stuck(3 * time.Minute), 421 * time.Second},
		"at the end":   {stuck(600 * time.Second), time.Second},
		"timed out":    {stuck(time.Hour), 0},
		"complete":     {plain(web("v1", 3, done), set("v1", 3)), 0},
		"was complete": {plain(web("v1", 3, done), set("v1", 3, has(3, 1))), 0},
		"no deadline":  {plain(web("v1", 3, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil })), 0},
		"paused":       {plain(web("v1", 3, paused)), 0},
		"deleted":      {plain(web("v1", 3, dying, progressing(v1.ConditionTrue, replicaSetUpdated, 0))), 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := time.Duration(0)
			if at := planFor(tt.facts).recheck; !at.IsZero() {
				got = at.Sub(now)
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
