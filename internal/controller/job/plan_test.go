package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func build(completions, parallelism int32, changes ...func(*batchv1.Job)) *batchv1.Job {
	j := newJob(completions, parallelism)
	j.Status.StartTime = new(metav1.NewTime(epoch.Add(-time.Minute)))
	for _, f := range changes {
		f(j)
	}
	return j
}

func indexed(j *batchv1.Job) { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) }

func perIndex(limit int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		indexed(j)
		j.Spec.BackoffLimitPerIndex, j.Spec.BackoffLimit = &limit, new(int32(1<<30))
		j.Status.FailedIndexes = new("")
	}
}

func limit(n int32) func(*batchv1.Job) { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }
func deadline(s int64) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &s }
}
func done(text string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Status.CompletedIndexes = text }
}
func counted(s, f int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Status.Succeeded, j.Status.Failed = s, f }
}
func anyNumber(j *batchv1.Job) { j.Spec.Completions = nil }
func suspended(j *batchv1.Job) { j.Spec.Suspend = new(true) }
func wasSuspended(j *batchv1.Job) {
	j.Status.Conditions = []batchv1.JobCondition{*condition(batchv1.JobSuspended, "JobSuspended", "Job suspended", epoch)}
}
func awaiting(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
func deleted(j *batchv1.Job)  { j.DeletionTimestamp = new(metav1.NewTime(epoch)) }

func policy(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules} }
}

func success(rules ...batchv1.SuccessPolicyRule) func(*batchv1.Job) {
	return func(j *batchv1.Job) { indexed(j); j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules} }
}

func verdict(t batchv1.JobConditionType, reason string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.Conditions = append(j.Status.Conditions, *condition(t, reason, "why", epoch))
	}
}

func lists(succeeded, failed []types.UID) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: succeeded, Failed: failed}
	}
}

func restarts(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyOnFailure }

func restarted(n int32) podOption {
	return func(p *v1.Pod) { p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", RestartCount: n}} }
}

func disrupted(p *v1.Pod) {
	p.Status.Phase = v1.PodFailed
	p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}
}

func names(list []*v1.Pod) string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// describe says in one line what a plan does.
func describe(p plan) string {
	var out []string
	if p.verdict != nil {
		out = append(out, fmt.Sprintf("%s %s", p.verdict.Type, p.verdict.Reason))
	}
	for what, list := range map[string][]*v1.Pod{"remove": p.remove, "track": p.track} {
		if len(list) > 0 {
			out = append(out, what+" "+names(list))
		}
	}
	if len(p.create) > 0 {
		var at []string
		for _, n := range p.create {
			text := fmt.Sprint(n.index)
			if n.replaces != nil {
				text += "<" + n.replaces.Name
			}
			at = append(at, text)
		}
		out = append(out, "create "+strings.Join(at, " "))
	}
	if p.wait > 0 {
		out = append(out, "wait "+p.wait.String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// report says in one line what is counted, and who is released.
func report(a account) string {
	st := a.status
	u := st.UncountedTerminatedPods
	text := fmt.Sprintf("%d+%d", st.Succeeded, st.Failed)
	if len(u.Succeeded)+len(u.Failed) > 0 {
		text += fmt.Sprintf(" list %v %v", u.Succeeded, u.Failed)
	}
	if st.CompletedIndexes != "" {
		text += " done " + st.CompletedIndexes
	}
	if f := st.FailedIndexes; f != nil && *f != "" {
		text += " lost " + *f
	}
	if len(a.release) > 0 {
		text += " release " + names(a.release)
	}
	if a.terminal != nil {
		text += fmt.Sprintf(" then %s %s", a.terminal.Type, a.terminal.Reason)
	}
	return text
}

type planCase struct {
	job    *batchv1.Job
	pods   []*v1.Pod
	before failures
	plan   string // as describe says it
	report string // as report says it, when the plan has succeeded; "" is no matter
}

func run(t *testing.T, tests map[string]planCase) {
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := take(facts{job: tt.job, pods: tt.pods, before: tt.before, now: epoch})
			p := planFor(c)
			if got := describe(p); got != tt.plan {
				t.Errorf("plan:   %q\nwanted: %q", got, tt.plan)
			}
			a := accountFor(c, p, outcome{created: int32(len(p.create)), removed: int32(len(p.remove)), removedReady: countReady(p.remove)})
			if got := report(a); tt.report != "" && got != tt.report {
				t.Errorf("report: %q\nwanted: %q", got, tt.report)
			}
		})
	}
}

func list(pods ...*v1.Pod) []*v1.Pod { return pods }

func TestNumberOfPods(t *testing.T) {
	run(t, map[string]planCase{
		"a new job":                                    {job: build(3, 2), plan: "create -1 -1", report: "0+0"},
		"no more than are left to complete":            {job: build(3, 5, counted(2, 0)), plan: "create -1"},
		"one is there":                                 {job: build(3, 2), pods: list(pod("a")), plan: "create -1"},
		"all are there":                                {job: build(3, 2), pods: list(pod("a"), pod("b")), plan: ""},
		"an end that is not counted yet":               {job: build(2, 2), pods: list(pod("a", succeeded)), plan: "create -1", report: "0+0 list [a] [] release a"},
		"a success that is listed":                     {job: build(1, 1, lists([]types.UID{"a"}, nil)), pods: list(pod("a", succeeded)), plan: "", report: "0+0 list [a] [] release a then Complete CompletionsReached"},
		"a success that is listed, and released":       {job: build(1, 1, lists([]types.UID{"a"}, nil)), pods: list(pod("a", succeeded, untracked)), plan: "", report: "1+0 then Complete CompletionsReached"},
		"a success that is listed, and gone":           {job: build(1, 1, lists([]types.UID{"a"}, nil)), plan: "", report: "1+0 then Complete CompletionsReached"},
		"a success that was counted":                   {job: build(2, 1, counted(1, 0)), pods: list(pod("a", succeeded, untracked)), plan: "create -1", report: "1+0"},
		"less parallelism: what got least far goes":    {job: build(5, 1), pods: list(pod("a", ready), pod("b", pending), pod("c")), plan: "remove b c"},
		"no parallelism":                               {job: build(5, 0), pods: list(pod("a")), plan: "remove a"},
		"no completions wanted":                        {job: build(0, 1), plan: "", report: "0+0 then Complete CompletionsReached"},
		"without a number: as many as side by side":    {job: build(1, 3, anyNumber), plan: "create -1 -1 -1"},
		"without a number: no new ones after success":  {job: build(1, 3, anyNumber, counted(1, 0)), pods: list(pod("a")), plan: "", report: "1+0"},
		"without a number: done when the last one is":  {job: build(1, 3, anyNumber, counted(1, 0)), pods: list(pod("a", failed)), plan: "", report: "1+0 list [] [a] release a then Complete CompletionsReached"},
		"terminating ones are replaced, and counted":   {job: build(2, 1), pods: list(pod("a", terminating)), before: failures{}, plan: "wait 10s", report: "0+0 list [] [a] release a"},
		"terminating ones are awaited":                 {job: build(2, 1, awaiting), pods: list(pod("a", terminating)), plan: "", report: "0+0"},
		"an awaited one has ended":                     {job: build(2, 1, awaiting), pods: list(pod("a", terminating, exits(1, epoch.Add(-time.Minute)))), plan: "create -1", report: "0+0 list [] [a] release a"},
		"suspended":                                    {job: build(2, 2, suspended), pods: list(pod("a"), pod("b", succeeded)), plan: "remove a", report: "0+0 list [b] [] release b"},
		"a suspended one creates none":                 {job: build(2, 2, suspended), plan: "", report: "0+0"},
		"resumed":                                      {job: build(1, 1, wasSuspended, deadline(30)), plan: "create -1, wait 30s"},
		"one that lost its finalizer":                  {job: build(1, 1), pods: list(pod("a", untracked)), plan: "track a"},
		"one that lost it and has to go":               {job: build(1, 1, suspended), pods: list(pod("a", untracked)), plan: "remove a"},
		"a deleted job: all are released":              {job: build(2, 2, deleted), pods: list(pod("a"), pod("b", failed), pod("c", untracked)), plan: "", report: "0+0 list [] [b] release a b"},
		"a failure that is listed stays one":           {job: build(1, 1, lists(nil, []types.UID{"a"})), pods: list(pod("a", succeeded)), plan: "create -1", report: "0+0 list [] [a] release a"},
		"what ends beside a completion is not created": {job: build(2, 2, counted(1, 0)), pods: list(pod("a")), plan: ""},
	})
}

func TestBackoff(t *testing.T) {
	ago := func(d time.Duration) time.Time { return epoch.Add(-d) }
	run(t, map[string]planCase{
		"the first failure":                     {job: build(1, 1), pods: list(pod("a", exits(1, ago(3*time.Second)))), plan: "wait 7s", report: "0+0 list [] [a] release a"},
		"its delay is over":                     {job: build(1, 1), pods: list(pod("a", exits(1, ago(10*time.Second)))), plan: "create -1"},
		"the third":                             {job: build(1, 1), before: failures{2, ago(30 * time.Second)}, pods: list(pod("a", exits(1, epoch))), plan: "wait 40s"},
		"never more than ten minutes":           {job: build(1, 1, limit(1000)), before: failures{900, epoch}, plan: "wait 10m0s"},
		"a success ends the series":             {job: build(2, 1), before: failures{5, ago(time.Minute)}, pods: list(pod("a", succeeded)), plan: "create -1"},
		"a failure after the last success":      {job: build(2, 1), before: failures{5, ago(time.Minute)}, pods: list(pod("a", func(p *v1.Pod) { succeeded(p); p.Status.ContainerStatuses[0] = ended(0, ago(5*time.Second)) }), pod("b", failed)), plan: "wait 10s"},
		"too many":                              {job: build(1, 2, limit(1)), pods: list(pod("a", failed), pod("b", failed), pod("c")), plan: "FailureTarget BackoffLimitExceeded, remove c", report: "0+0 list [] [a b c] release a b c then Failed BackoffLimitExceeded"},
		"none is allowed":                       {job: build(1, 1, limit(0)), pods: list(pod("a", failed)), plan: "FailureTarget BackoffLimitExceeded"},
		"as many as allowed":                    {job: build(1, 1, limit(1)), pods: list(pod("a", failed)), plan: "wait 10s"},
		"restarts in place":                     {job: build(1, 1, restarts, limit(2)), pods: list(pod("a", restarted(2))), plan: "FailureTarget BackoffLimitExceeded, remove a"},
		"fewer restarts":                        {job: build(1, 1, restarts, limit(2)), pods: list(pod("a", restarted(1))), plan: ""},
		"restarts count only in place":          {job: build(1, 1, limit(2)), pods: list(pod("a", restarted(5))), plan: ""},
		"the deadline is ahead":                 {job: build(1, 1, deadline(100)), pods: list(pod("a")), plan: "wait 40s"},
		"the deadline has come":                 {job: build(1, 1, deadline(60)), pods: list(pod("a")), plan: "FailureTarget DeadlineExceeded, remove a", report: "0+0 list [] [a] release a then Failed DeadlineExceeded"},
		"a deadline that never comes":           {job: build(1, 1, deadline(1<<62)), pods: list(pod("a")), plan: "wait 2562047h46m16.854775807s"},
		"decided before: failure":               {job: build(1, 1, verdict(batchv1.JobFailureTarget, "R")), pods: list(pod("a", terminating)), plan: "FailureTarget R", report: "0+0 list [] [a] release a then Failed R"},
		"decided before: success":               {job: build(1, 1, verdict(batchv1.JobSuccessCriteriaMet, "R"), limit(0)), pods: list(pod("a", exits(1, epoch)), pod("b")), plan: "SuccessCriteriaMet R, remove b", report: "0+0 list [] [a] release a b then Complete R"},
		"what a restarted controller remembers": {job: build(1, 1, counted(0, 1)), before: remembered(build(1, 1), list(pod("a", failed, untracked), pod("b", failed))), pods: list(pod("a", failed, untracked)), plan: "wait 10s"},
	})
}

func TestFailurePolicy(t *testing.T) {
	const failJob, ignore, count, failIndex = batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex
	onDisruption := func(action batchv1.PodFailurePolicyAction) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}}
	}
	notIn := onExit(failJob, 1, 2)
	notIn.OnExitCodes.Operator = batchv1.PodFailurePolicyOnExitCodesOpNotIn
	ofOther := onExit(failJob, 1)
	ofOther.OnExitCodes.ContainerName = new("other")
	long := exits(1, epoch.Add(-time.Hour))
	run(t, map[string]planCase{
		"a code fails the job":         {job: build(1, 2, policy(onExit(failJob, 42))), pods: list(pod("a", exits(42, epoch)), pod("b")), plan: "FailureTarget PodFailurePolicy, remove b"},
		"another code does not":        {job: build(1, 1, policy(onExit(failJob, 42))), pods: list(pod("a", long)), plan: "create -1", report: "0+0 list [] [a] release a"},
		"all but some codes":           {job: build(1, 1, policy(notIn)), pods: list(pod("a", exits(3, epoch))), plan: "FailureTarget PodFailurePolicy"},
		"one of some codes":            {job: build(1, 1, policy(notIn)), pods: list(pod("a", long)), plan: "create -1"},
		"another container":            {job: build(1, 1, policy(ofOther)), pods: list(pod("a", long)), plan: "create -1"},
		"ignored: not counted":         {job: build(1, 1, limit(0), policy(onDisruption(ignore))), pods: list(pod("a", disrupted)), plan: "create -1", report: "0+0 release a"},
		"counted by the first rule":    {job: build(1, 1, policy(onExit(count, 1), onExit(failJob, 1))), pods: list(pod("a", long)), plan: "create -1", report: "0+0 list [] [a] release a"},
		"an index fails":               {job: build(2, 1, perIndex(9), policy(onExit(failIndex, 42))), pods: list(pod("a", index("0"), exits(42, epoch))), plan: "create 1", report: "0+0 list [] [a] lost 0 release a"},
		"one that is ending may yet":   {job: build(1, 1, limit(0), policy(onExit(failJob, 42))), pods: list(pod("a", terminating)), plan: "", report: "0+0"},
		"ignored ones of an index":     {job: build(1, 1, perIndex(0), policy(onDisruption(ignore))), pods: list(pod("a", index("0"), disrupted)), plan: "create 0<a", report: "0+0"},
		"a message names what matched": {job: build(1, 1, policy(onExit(failJob, 42))), pods: list(pod("a", exits(42, epoch))), plan: "FailureTarget PodFailurePolicy"},
	})
	for _, tt := range []struct {
		rule batchv1.PodFailurePolicyRule
		pod  *v1.Pod
		want string
	}{
		{onExit(failJob, 42), pod("p", exits(42, epoch)), "Container c for pod a/p failed with exit code 42 matching FailJob rule at index 0"},
		{onDisruption(failJob), pod("p", disrupted), "Pod a/p has condition DisruptionTarget matching FailJob rule at index 0"},
	} {
		if got := judge(&batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{tt.rule}}, tt.pod).message; got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestIndexes(t *testing.T) {
	long := exits(1, epoch.Add(-time.Hour))
	run(t, map[string]planCase{
		"the first ones":                    {job: build(5, 2, indexed), plan: "create 0 1"},
		"the first that are open":           {job: build(5, 2, indexed, done("0,2")), pods: list(pod("a", index("1"))), plan: "create 3", report: "2+0 done 0,2"},
		"one is done now":                   {job: build(3, 1, indexed, done("0")), pods: list(pod("a", index("1"), succeeded)), plan: "create 2", report: "2+0 done 0,1 release a"},
		"all are done":                      {job: build(3, 1, indexed, done("0,1")), pods: list(pod("a", index("2"), succeeded)), plan: "", report: "3+0 done 0-2 release a then Complete CompletionsReached"},
		"two of an index":                   {job: build(3, 3, indexed), pods: list(pod("a", index("0"), ready), pod("b", index("0"))), plan: "remove b"},
		"no index, or one too high":         {job: build(2, 9, indexed), pods: list(pod("a", index("0")), pod("b", index("1")), pod("c"), pod("d", index("2")), pod("e", index("x"))), plan: "remove c d e"},
		"one of an index that is done":      {job: build(2, 2, indexed, done("0")), pods: list(pod("a", index("0"))), plan: "remove a"},
		"ends without an index are nothing": {job: build(1, 1, indexed, limit(0)), pods: list(pod("a", succeeded), pod("b", index("7"), failed)), plan: "create 0", report: "0+0 release a b"},
		"fewer completions than before":     {job: build(2, 2, indexed, done("0-4")), plan: "", report: "2+0 done 0,1 then Complete CompletionsReached"},
		"an ending index is awaited":        {job: build(3, 2, indexed, awaiting), pods: list(pod("a", index("0"), terminating)), plan: "create 1"},

		"an index has its own delay":   {job: build(3, 2, perIndex(2)), pods: list(pod("a", index("0"), exits(1, epoch.Add(-time.Second))), pod("b", index("1"))), plan: "wait 9s", report: "0+0"},
		"and others have not":          {job: build(3, 2, perIndex(2)), pods: list(pod("a", index("0"), exits(1, epoch.Add(-time.Second)))), plan: "create 1, wait 9s"},
		"it is replaced":               {job: build(3, 1, perIndex(2)), pods: list(pod("a", index("0"), long)), plan: "create 0<a", report: "0+0"},
		"the replaced one is counted":  {job: build(3, 1, perIndex(2)), pods: list(pod("a", index("0"), long), pod("b", index("0"), failedOnceBefore())), plan: "", report: "0+0 list [] [a] release a"},
		"the last of several":          {job: build(3, 1, perIndex(3)), pods: list(pod("a", index("0"), long), pod("b", index("0"), failedOnceBefore(), long)), plan: "create 0<b", report: "0+0 list [] [a] release a"},
		"it has failed too often":      {job: build(3, 1, perIndex(1)), pods: list(pod("b", index("0"), failedOnceBefore(), failed)), plan: "create 1", report: "0+0 list [] [b] lost 0 release b"},
		"too many indexes have failed": {job: build(3, 2, perIndex(0), func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = new(int32(0)) }), pods: list(pod("a", index("0"), failed), pod("b", index("1"))), plan: "FailureTarget MaxFailedIndexesExceeded, remove b", report: "0+0 list [] [a b] lost 0 release a b then Failed MaxFailedIndexesExceeded"},
		"some failed, all have ended":  {job: build(2, 1, perIndex(0), done("1")), pods: list(pod("a", index("0"), failed)), plan: "FailureTarget FailedIndexes", report: "1+0 list [] [a] done 1 lost 0 release a then Failed FailedIndexes"},

		"success by count":     {job: build(4, 2, success(batchv1.SuccessPolicyRule{SucceededCount: new(int32(2))}), done("3")), pods: list(pod("a", index("0"), succeeded), pod("b", index("1"))), plan: "SuccessCriteriaMet SuccessPolicy, remove b", report: "2+0 done 0,3 release a b then Complete SuccessPolicy"},
		"success by indexes":   {job: build(4, 2, success(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1")}), done("0-1")), plan: "SuccessCriteriaMet SuccessPolicy"},
		"not all indexes":      {job: build(4, 1, success(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1")}), done("0,2-3")), plan: "create 1"},
		"some of the indexes":  {job: build(4, 1, success(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1"), SucceededCount: new(int32(1))}), done("0")), plan: "SuccessCriteriaMet SuccessPolicy"},
		"failure comes before": {job: build(4, 1, limit(0), success(batchv1.SuccessPolicyRule{SucceededCount: new(int32(1))}), done("0")), pods: list(pod("a", index("1"), failed)), plan: "FailureTarget BackoffLimitExceeded"},
	})
}

// Thousands of ends are counted a part at a time, so that the status stays small; those first that
// are listed already.
func TestManyEnds(t *testing.T) {
	var all []*v1.Pod
	for i := range 10000 {
		all = append(all, pod(fmt.Sprintf("p%05d", i), failed))
	}
	j := build(1, 1, limit(1<<30), lists(nil, []types.UID{"p09999"}))
	var memory failures
	for round := 0; ; round++ {
		c := take(facts{job: j, pods: all, before: memory, now: epoch})
		a := accountFor(c, planFor(c), outcome{})
		if n := len(a.status.UncountedTerminatedPods.Failed); n > burst {
			t.Fatalf("%d are listed", n)
		}
		if round == 0 && a.release[0].Name != "p09999" {
			t.Errorf("first %s", a.release[0].Name)
		}
		if len(a.release) == 0 {
			break
		}
		for _, p := range a.release {
			p.Finalizers = nil
		}
		settle(&a.status, trackedOf(all))
		j.Status, memory = a.status, a.failures
	}
	if j.Status.Failed != 10000 || memory.n != 9999 { // one was listed, and remembered, before
		t.Errorf("%d are counted, %d remembered", j.Status.Failed, memory.n)
	}
}

func TestSuspendAndResume(t *testing.T) {
	report := func(j *batchv1.Job, pods ...*v1.Pod) account {
		c := take(facts{job: j, pods: pods, now: epoch})
		return accountFor(c, planFor(c), outcome{})
	}
	a := report(build(1, 1, suspended))
	if c := conditionOf(&a.status, batchv1.JobSuspended); c == nil || c.Status != v1.ConditionTrue || a.status.StartTime != nil || a.event.reason != "Suspended" {
		t.Errorf("%+v %+v", a.status, a.event)
	}
	j := build(1, 1, suspended)
	j.Status = a.status
	if a = report(j); a.event != nil {
		t.Errorf("told again: %+v", a.event)
	}
	j.Spec.Suspend = new(false)
	a = report(j)
	if c := conditionOf(&a.status, batchv1.JobSuspended); c.Status != v1.ConditionFalse || c.Reason != "JobResumed" || !a.status.StartTime.Equal(new(metav1.NewTime(epoch))) || a.event.reason != "Resumed" {
		t.Errorf("%+v %+v", a.status, a.event)
	}
	if a = report(build(1, 1)); len(a.status.Conditions) != 0 || a.event != nil {
		t.Errorf("one that never was suspended: %+v", a.status)
	}
}

// A job is finished only when nothing of it is left.
func TestFinish(t *testing.T) {
	complete := condition(batchv1.JobComplete, "R", "m", epoch)
	for name, tt := range map[string]struct {
		change   func(*batchv1.JobStatus)
		terminal *batchv1.JobCondition
		tracked  map[types.UID]bool
		want     bool
	}{
		"nothing is left":     {terminal: complete, want: true},
		"it goes on":          {},
		"one is ending":       {terminal: complete, change: func(st *batchv1.JobStatus) { st.Terminating = new(int32(1)) }},
		"one is not counted":  {terminal: complete, change: func(st *batchv1.JobStatus) { st.UncountedTerminatedPods.Failed = []types.UID{"a"} }},
		"one is not released": {terminal: complete, tracked: map[types.UID]bool{"a": true}},
		"one is active":       {terminal: complete, change: func(st *batchv1.JobStatus) { st.Active = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			st := batchv1.JobStatus{Terminating: new(int32(0)), UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}}
			if tt.change != nil {
				tt.change(&st)
			}
			if got := finish(build(1, 1), &st, tt.terminal, tt.tracked); got != tt.want || isTrue(&st, batchv1.JobComplete) != tt.want || (st.CompletionTime != nil) != tt.want {
				t.Errorf("%v: %+v", got, st)
			}
			if tt.want && st.StartTime == nil {
				t.Error("the API refuses a finished job without a start")
			}
		})
	}
}
