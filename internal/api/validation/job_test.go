package validation

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/api/pods"
)

func newJob() *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", UID: "u"}, Spec: batchv1.JobSpec{Template: appTemplate()}}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	j.Spec.Template.Labels = pods.JobLabels(j)
	j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: "u"}}
	defaults.Job(j)
	return j
}

func indexedJob(completions int32) *batchv1.Job {
	j := newJob()
	j.Spec.CompletionMode, j.Spec.Completions, j.Spec.Parallelism = new(batchv1.IndexedCompletion), new(completions), new(completions)
	return j
}

func TestJobs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*batchv1.Job)
		want   []string
	}{
		{"fine", func(*batchv1.Job) {}, nil},
		{"numbers", func(j *batchv1.Job) {
			s := &j.Spec
			s.Parallelism, s.Completions, s.ActiveDeadlineSeconds, s.BackoffLimit, s.TTLSecondsAfterFinished = new(int32(-1)), new(int32(-2)), new(int64(-3)), new(int32(-4)), new(int32(-5))
		}, []string{"spec.parallelism: Invalid value: -1", "spec.completions: Invalid value: -2", "spec.activeDeadlineSeconds: Invalid value: -3", "spec.backoffLimit: Invalid value: -4", "spec.ttlSecondsAfterFinished: Invalid value: -5"}},
		{"restarts", func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways },
			[]string{`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`}},
		{"deadline of a pod", func(j *batchv1.Job) { j.Spec.Template.Spec.ActiveDeadlineSeconds = new(int64(5)) }, nil},
		{"labels", func(j *batchv1.Job) { delete(j.Spec.Template.Labels, "job-name") },
			[]string{"spec.template.metadata.labels[job-name]: Required value: must be 'j'"}},
		{"other labels", func(j *batchv1.Job) { j.Spec.Template.Labels[batchv1.JobNameLabel] = "k" },
			[]string{"spec.template.metadata.labels[batch.kubernetes.io/job-name]: Invalid value: {"}},
		{"other selector", func(j *batchv1.Job) { j.Spec.Selector.MatchLabels["a"] = "b" },
			[]string{"spec.selector: Invalid value: {", "spec.template.metadata.labels: Invalid value: {"}},
		{"selector of its own", func(j *batchv1.Job) {
			j.Spec.ManualSelector, j.Spec.Selector, j.Spec.Template.Labels = new(true), appSelector(), appTemplate().Labels
		}, nil},
		{"no selector", func(j *batchv1.Job) { j.Spec.Selector = nil }, []string{"spec.selector: Required value", "spec.template.metadata.labels: Invalid value"}},
		{"manager", func(j *batchv1.Job) { j.Spec.ManagedBy = new("me") },
			[]string{`spec.managedBy: Invalid value: "me": must be a domain-prefixed path (such as "acme.io/foo")`}},
		{"long manager", func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/" + strings.Repeat("x", 60)) }, []string{"spec.managedBy: Too long: may not be more than 63 bytes"}},
		{"mode", func(j *batchv1.Job) { j.Spec.CompletionMode = new(batchv1.CompletionMode("Wild")) },
			[]string{`spec.completionMode: Unsupported value: "Wild": supported values: "NonIndexed", "Indexed"`}},
		{"limits of indexes", func(j *batchv1.Job) {
			j.Spec.BackoffLimitPerIndex, j.Spec.MaxFailedIndexes = new(int32(1)), new(int32(1))
		},
			[]string{"spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode", "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode"}},
		{"success", func(j *batchv1.Job) { j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} },
			[]string{`spec.successPolicy: Invalid value: {"rules":null}: requires indexed completion mode`}},
		{"replacement", func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.PodReplacementPolicy("Never")) },
			[]string{`spec.podReplacementPolicy: Unsupported value: "Never": supported values: "Failed", "TerminatingOrFailed"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := newJob()
			tc.change(j)
			check(t, Job(j), tc.want...)
		})
	}
}

func TestIndexedJobs(t *testing.T) {
	for _, tc := range []struct {
		name        string
		completions int32
		change      func(*batchv1.Job)
		want        []string
	}{
		{"fine", 3, func(*batchv1.Job) {}, nil},
		{"no completions", 3, func(j *batchv1.Job) { j.Spec.Completions = nil }, []string{"spec.completions: Required value: when completion mode is Indexed"}},
		{"long name", 1000, func(j *batchv1.Job) {
			j.Name = strings.Repeat("j", 60)
			j.Spec.Template.Labels = pods.JobLabels(j)
		}, []string{`metadata.name: Invalid value: "` + strings.Repeat("j", 60) + `": will not able to create pod with invalid DNS label: ` + strings.Repeat("j", 60) + "-999"}},
		{"too many", 100_001, func(*batchv1.Job) {}, []string{"spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed"}},
		{"many, with limits", 100_001, func(j *batchv1.Job) {
			j.Spec.BackoffLimitPerIndex, j.Spec.Parallelism = new(int32(1)), new(int32(10_001))
		}, []string{
			"spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
			"spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index"}},
		{"limit", 3, func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = new(int32(4)) }, []string{
			"spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified", "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := indexedJob(tc.completions)
			tc.change(j)
			check(t, Job(j), tc.want...)
		})
	}
}

func TestPoliciesOfJobs(t *testing.T) {
	j := newJob()
	j.Spec.PodReplacementPolicy = new(batchv1.Failed)
	in, count := batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyActionCount
	j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: count, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new("c"), Operator: in, Values: []int32{1, 2}}},
		{},
		{Action: "Cry", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new("d"), Operator: "Near"}},
		{Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: in, Values: []int32{2, 0, 2}},
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: "a b", Status: "Maybe"}, {Type: "a"}}},
	}}
	check(t, Job(j),
		`spec.podFailurePolicy.rules[1].action: Required value: valid values: ["Count" "FailIndex" "FailJob" "Ignore"]`,
		"spec.podFailurePolicy.rules[1]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
		`spec.podFailurePolicy.rules[2].action: Unsupported value: "Cry": supported values: "Count", "FailIndex", "FailJob", "Ignore"`,
		`spec.podFailurePolicy.rules[2].onExitCodes.operator: Unsupported value: "Near": supported values: "In", "NotIn"`,
		`spec.podFailurePolicy.rules[2].onExitCodes.containerName: Invalid value: "d": must be one of the container or initContainer names in the pod template`,
		"spec.podFailurePolicy.rules[2].onExitCodes.values: Invalid value: null: at least one value is required",
		`spec.podFailurePolicy.rules[3].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set`,
		"spec.podFailurePolicy.rules[3].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
		"spec.podFailurePolicy.rules[3].onExitCodes.values[2]: Duplicate value: 2",
		"spec.podFailurePolicy.rules[3].onExitCodes.values: Invalid value: [2,0,2]: must be ordered",
		`spec.podFailurePolicy.rules[3].onPodConditions[0].type: Invalid value: "a b"`,
		`spec.podFailurePolicy.rules[3].onPodConditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown"`,
		`spec.podFailurePolicy.rules[3].onPodConditions[1].status: Required value: valid values: ["False" "True" "Unknown"]`,
		"spec.podFailurePolicy.rules[3]: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported")
	j.Spec.PodFailurePolicy.Rules = j.Spec.PodFailurePolicy.Rules[:1]
	j.Spec.Template.Spec.RestartPolicy, j.Spec.PodReplacementPolicy = corev1.RestartPolicyOnFailure, new(batchv1.TerminatingOrFailed)
	check(t, Job(j),
		`spec.template.spec.restartPolicy: Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified`,
		`spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"`)

	j = indexedJob(5)
	j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{}
	check(t, Job(j), "spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified")
	j.Spec.SuccessPolicy.Rules = []batchv1.SuccessPolicyRule{
		{SucceededIndexes: new("0,2-4"), SucceededCount: new(int32(4))},
		{}, {SucceededIndexes: new("1,5")}, {SucceededCount: new(int32(6))}, {SucceededIndexes: new("0-1"), SucceededCount: new(int32(3))},
	}
	check(t, Job(j),
		"spec.successPolicy.rules[1]: Required value: at least one of succeededCount or succeededIndexes must be specified",
		`spec.successPolicy.rules[2].succeededIndexes: Invalid value: "1,5": error parsing succeededIndexes: too large index: "5"`,
		"spec.successPolicy.rules[3].succeededCount: Invalid value: 6: must be less than or equal to 5 (the number of specified completions)",
		"spec.successPolicy.rules[4].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)")
}

func TestIndexes(t *testing.T) {
	for text, want := range map[string]string{
		"":      "",
		"0":     "",
		"0,2-4": "",
		"1-2-3": `the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'`,
		"a":     `cannot convert string to integer for index: "a"`,
		"1-b":   `cannot convert string to integer for index: "b"`,
		"3-9":   `too large index: "9"`,
		"3-2":   "non-increasing order, previous: 3, current: 2",
		"2,1":   "non-increasing order, previous: 2, current: 1",
		"1-3,3": "non-increasing order, previous: 3, current: 3",
	} {
		_, err := parseIndexes(text, 5)
		if got := strings.TrimPrefix(errText(err), "<nil>"); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	a, _ := parseIndexes("0-1,4,8-9", 10)
	b, _ := parseIndexes("2-3,9", 10)
	if i, both := overlap(a, b); !both || i != 9 {
		t.Errorf("overlap at %d, %v", i, both)
	}
	if _, both := overlap(a, b[:1]); both {
		t.Error("there is no overlap")
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWhatAJobMayChange(t *testing.T) {
	j, old := newJob(), newJob()
	j.Spec.Parallelism, j.Spec.Suspend, j.Spec.ActiveDeadlineSeconds, j.Spec.TTLSecondsAfterFinished = new(int32(5)), new(true), new(int64(5)), new(int32(5))
	check(t, JobUpdate(j, old))
	j.Spec.Completions = new(int32(2))
	j.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	check(t, JobUpdate(j, old), "spec.completions: Invalid value: 2: field is immutable", "spec.template: Invalid value: {")
	old.Spec.Selector = nil
	check(t, JobUpdate(newJob(), old), "spec.selector: Invalid value: {")

	was, is := indexedJob(3), indexedJob(5)
	check(t, JobUpdate(is, was))
	is.Spec.Parallelism = new(int32(2))
	check(t, JobUpdate(is, was), "spec.completions: Invalid value: 5: can only be modified in tandem with spec.parallelism")
}

func TestASuspendedJobCanBePlacedAndSizedAnew(t *testing.T) {
	old := newJob()
	old.Spec.Suspend = new(true)
	j := old.DeepCopy()
	spec := &j.Spec.Template.Spec
	spec.NodeSelector = map[string]string{"disk": "ssd"}
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	j.Spec.Template.Annotations = map[string]string{"a": "b"}
	check(t, JobUpdate(j, old))
	check(t, JobUpdate(old, j))
	started := old.DeepCopy()
	started.Status.StartTime = &metav1.Time{}
	check(t, JobUpdate(j, started), "spec.template: Invalid value: {")
	started.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
	check(t, JobUpdate(j, started))
	spec.Containers[0].Image = "j"
	check(t, JobUpdate(j, started), "spec.template.spec: Invalid value: {")
}

func TestStatusOfJobs(t *testing.T) {
	at := func(minute int) *metav1.Time { return new(metav1.NewTime(time.Unix(int64(60*minute), 0))) }
	is := func(types ...batchv1.JobConditionType) []batchv1.JobCondition {
		var out []batchv1.JobCondition
		for _, t := range types {
			out = append(out, batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
		}
		return out
	}
	const conditions = "status.conditions: Invalid value: "
	complete, failed, target, met := batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet
	for _, tc := range []struct {
		name    string
		was, is batchv1.JobStatus
		want    []string
	}{
		{"nothing", batchv1.JobStatus{}, batchv1.JobStatus{}, nil},
		{"success", batchv1.JobStatus{StartTime: at(1), Active: 1}, batchv1.JobStatus{StartTime: at(1), CompletionTime: at(2), Succeeded: 1, Conditions: is(met, complete)}, nil},
		{"failure", batchv1.JobStatus{StartTime: at(1)}, batchv1.JobStatus{StartTime: at(1), Failed: 1, Conditions: is(target, failed)}, nil},
		{"unfounded success", batchv1.JobStatus{}, batchv1.JobStatus{Conditions: is(complete)}, []string{
			conditions + "cannot set Complete=True condition without the SuccessCriteriaMet=true condition", "status.completionTime: Required value: completionTime is required for Complete jobs", "status.startTime: Required value: startTime is required for finished job"}},
		{"both", batchv1.JobStatus{StartTime: at(1)}, batchv1.JobStatus{StartTime: at(1), CompletionTime: at(1), Conditions: is(complete, failed)}, []string{
			conditions + "cannot set Complete=True and Failed=true conditions", conditions + "cannot set Failed=True condition without the FailureTarget=true condition", conditions + "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"}},
		{"contradictions", batchv1.JobStatus{}, batchv1.JobStatus{Conditions: is(met, target)}, []string{conditions + "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"}},
		{"back to life", batchv1.JobStatus{StartTime: at(1), Conditions: is(target, failed)}, batchv1.JobStatus{StartTime: at(1)}, []string{
			conditions + "cannot disable the terminal Failed=True condition", conditions + "cannot disable the terminal FailureTarget=True condition"}},
		{"criteria", batchv1.JobStatus{Conditions: is(met)}, batchv1.JobStatus{}, []string{conditions + "cannot disable the SuccessCriteriaMet=True condition"}},
		{"counters", batchv1.JobStatus{Succeeded: 2, Failed: 2}, batchv1.JobStatus{Succeeded: 1, Failed: 1, Ready: new(int32(2)), Terminating: new(int32(-1))}, []string{
			"status.succeeded: Invalid value: 1: cannot decrease the succeeded counter", "status.failed: Invalid value: 1: cannot decrease the failed counter",
			"status.ready: Invalid value: 2: cannot set more ready pods than active", "status.terminating: Invalid value: -1"}},
		{"left over", batchv1.JobStatus{StartTime: at(1)}, batchv1.JobStatus{StartTime: at(1), Active: 1, Terminating: new(int32(1)), Conditions: is(target, failed),
			UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a", ""}, Failed: []types.UID{"a"}}}, []string{
			"status.active: Invalid value: 1: active>0 is invalid for finished job", "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job",
			"status.uncountedTerminatedPods: Invalid value: {", `status.uncountedTerminatedPods.succeeded[1]: Invalid value: "": must not be empty`,
			`status.uncountedTerminatedPods.failed[0]: Duplicate value: "a"`}},
		{"times", batchv1.JobStatus{StartTime: at(3)}, batchv1.JobStatus{StartTime: at(2), CompletionTime: at(1)}, []string{
			"status.completionTime: Invalid value: \"1970-01-01T00:01:00Z\": cannot set completionTime when there is no Complete=True condition",
			"status.completionTime: Invalid value: \"1970-01-01T00:01:00Z\": must be equal to or after `startTime`",
			"status.startTime: Invalid value: \"1970-01-01T00:02:00Z\": field is immutable for unsuspended job once set"}},
		{"indexes", batchv1.JobStatus{}, batchv1.JobStatus{CompletedIndexes: "0", FailedIndexes: new("0")}, []string{
			`status.completedIndexes: Invalid value: "0": cannot set non-empty completedIndexes when non-indexed completion mode`,
			`status.failedIndexes: Invalid value: "0": cannot set non-null failedIndexes when backoffLimitPerIndex is null`,
			`status.failedIndexes: Invalid value: "0": failedIndexes and completedIndexes overlap at index: 0`}},
		{"what was wrong before", batchv1.JobStatus{Conditions: is(complete, failed), CompletedIndexes: "9"}, batchv1.JobStatus{Conditions: is(complete, failed), CompletedIndexes: "9"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, j := newJob(), newJob()
			old.Status, j.Status = tc.was, tc.is
			check(t, JobStatusUpdate(j, old), tc.want...)
		})
	}
}

func newCronJob() *batchv1.CronJob {
	j := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: batchv1.CronJobSpec{Schedule: "*/5 * * * *"}}
	j.Spec.JobTemplate.Spec.Template = appTemplate()
	j.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	defaults.CronJob(j)
	return j
}

func TestCronJobs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*batchv1.CronJob)
		want   []string
	}{
		{"fine", func(*batchv1.CronJob) {}, nil},
		{"descriptor", func(j *batchv1.CronJob) { j.Spec.Schedule = "@hourly" }, nil},
		{"zone", func(j *batchv1.CronJob) { j.Spec.TimeZone = new("Europe/Berlin") }, nil},
		{"no schedule", func(j *batchv1.CronJob) { j.Spec.Schedule = "" }, []string{"spec.schedule: Required value"}},
		{"schedule", func(j *batchv1.CronJob) { j.Spec.Schedule = "61 * * * *" }, []string{`spec.schedule: Invalid value: "61 * * * *": end of range (61) above maximum (59): 61`}},
		{"zone in the schedule", func(j *batchv1.CronJob) { j.Spec.Schedule = "TZ=UTC 0 * * * *" },
			[]string{`spec.schedule: Invalid value: "TZ=UTC 0 * * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead`}},
		{"a schedule that breaks the parser", func(j *batchv1.CronJob) { j.Spec.Schedule = "TZ=0" },
			[]string{`spec.schedule: Invalid value: "TZ=0": invalid schedule format: `, `spec.schedule: Invalid value: "TZ=0": cannot use TZ`}},
		{"no zone", func(j *batchv1.CronJob) { j.Spec.TimeZone = new("") }, []string{`spec.timeZone: Invalid value: "": timeZone must be nil or non-empty string`}},
		{"escape", func(j *batchv1.CronJob) { j.Spec.TimeZone = new("../etc/passwd") }, []string{`spec.timeZone: Invalid value: "../etc/passwd": unknown time zone ../etc/passwd`}},
		{"unknown zone", func(j *batchv1.CronJob) { j.Spec.TimeZone = new("Moon/Base") }, []string{`spec.timeZone: Invalid value: "Moon/Base": unknown time zone Moon/Base`}},
		{"local", func(j *batchv1.CronJob) { j.Spec.TimeZone = new("Local") },
			[]string{`spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones`}},
		{"numbers", func(j *batchv1.CronJob) {
			j.Spec.StartingDeadlineSeconds, j.Spec.SuccessfulJobsHistoryLimit, j.Spec.FailedJobsHistoryLimit = new(int64(-1)), new(int32(-2)), new(int32(-3))
		}, []string{"spec.startingDeadlineSeconds: Invalid value: -1", "spec.successfulJobsHistoryLimit: Invalid value: -2", "spec.failedJobsHistoryLimit: Invalid value: -3"}},
		{"concurrency", func(j *batchv1.CronJob) { j.Spec.ConcurrencyPolicy = "Some" }, []string{`spec.concurrencyPolicy: Unsupported value: "Some": supported values: "Allow", "Forbid", "Replace"`}},
		{"selector", func(j *batchv1.CronJob) {
			j.Spec.JobTemplate.Spec.Selector, j.Spec.JobTemplate.Spec.ManualSelector = &metav1.LabelSelector{}, new(true)
		}, []string{"spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated", `spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"`}},
		{"restarts", func(j *batchv1.CronJob) {
			j.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		},
			[]string{`spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`}},
		{"name", func(j *batchv1.CronJob) { j.Name = strings.Repeat("c", 53) }, []string{`metadata.name: Invalid value: "` + strings.Repeat("c", 53) + `": must be no more than 52 characters`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := newCronJob()
			tc.change(j)
			check(t, CronJob(j), tc.want...)
		})
	}
	j, old := newCronJob(), newCronJob()
	j.Name, old.Name = strings.Repeat("c", 53), strings.Repeat("c", 53)
	j.Spec.Schedule, old.Spec.Schedule = "TZ=UTC 0 * * * *", "TZ=UTC 1 * * * *"
	check(t, CronJobUpdate(j, old))
	j.Spec.TimeZone = new("UTC")
	check(t, CronJobUpdate(j, old), `spec.schedule: Invalid value: "TZ=UTC 0 * * * *": cannot use both timeZone field and TZ or CRON_TZ in schedule`)
	j, old = newCronJob(), newCronJob()
	j.Spec.TimeZone, old.Spec.TimeZone = new("Atlantis"), new("Atlantis")
	check(t, CronJobUpdate(j, old))
}

func FuzzSchedules(f *testing.F) {
	for _, s := range []string{"* * * * *", "@every 1s", "TZ=0", "CRON_TZ=UTC 0 0 1 1 *", "0-5/0 * * * ?"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) { _ = parseSchedule(s) })
}

func FuzzIndexes(f *testing.F) {
	for _, s := range []string{"", "0", "0,2-4", "1-2-3", "3-2", "-1", "2,1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseIndexes(s, 100)
		if err == nil && (numberOf(list) < 0 || numberOf(list) > 100) {
			t.Errorf("%q has %d indexes below 100", s, numberOf(list))
		}
	})
}
