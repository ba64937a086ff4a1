package e2e

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jobKind is a job, and what it must come to, however often the node is killed.
type jobKind struct {
	name                     string
	completions, parallelism int32
	work                     string // what its pods do
	change                   func(*batchv1.JobSpec)

	condition         batchv1.JobConditionType
	reason            string
	succeeded, failed int32
	// starts is how many containers run. 0 if that is not promised: it is suspended while they do.
	starts int
}

const suspended = "suspended"

const nap = "sleep 0.$((RANDOM % 7 + 1)) & wait $!"

// once fails the first time that it is run in a job.
func once(code int) string { return fmt.Sprintf("mkdir $L-failed && exit %d", code) }

// jobScript appends to the ledger of a job (or of all of a cron job) when it starts, and after its work.
func jobScript(name, work string) string {
	return "trap 'exit 143' TERM; L=/ledger/" + name + `; me="${JOB_COMPLETION_INDEX:-0} ${POD:-$(hostname)}"; ` +
		`echo "start $me" >> $L; ` + work + `; echo "done $me" >> $L`
}

func onExit(code int32, action batchv1.PodFailurePolicyAction) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) {
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code},
			},
		}}}
	}
}

func indexed(s *batchv1.JobSpec) { s.CompletionMode = new(batchv1.IndexedCompletion) }

func jobKinds() []jobKind {
	const complete, reached = batchv1.JobComplete, batchv1.JobReasonCompletionsReached
	return []jobKind{
		{
			name: "plain", completions: 4, parallelism: 2, work: nap,
			condition: complete, reason: reached, succeeded: 4, starts: 4,
		},
		{
			name: "indexed", completions: 5, parallelism: 3, change: indexed,
			work:      "[ $JOB_COMPLETION_INDEX = 1 ] && " + once(1) + "; " + nap,
			condition: complete, reason: reached, succeeded: 5, failed: 1, starts: 6,
		},
		{
			name: "per-index", completions: 3, parallelism: 3, work: "[ $JOB_COMPLETION_INDEX = 0 ] && exit 1; " + nap,
			change:    func(s *batchv1.JobSpec) { indexed(s); s.BackoffLimitPerIndex = new(int32(1)) },
			condition: batchv1.JobFailed, reason: batchv1.JobReasonFailedIndexes, succeeded: 2, failed: 2, starts: 4,
		},
		{
			name: "policy", completions: 2, parallelism: 1, work: "exit 42",
			change:    onExit(42, batchv1.PodFailurePolicyActionFailJob),
			condition: batchv1.JobFailed, reason: batchv1.JobReasonPodFailurePolicy, failed: 1, starts: 1,
		},
		{
			name: "limit", completions: 1, parallelism: 1, work: nap + "; exit 1",
			change:    func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(1)) },
			condition: batchv1.JobFailed, reason: batchv1.JobReasonBackoffLimitExceeded, failed: 2, starts: 2,
		},
		{
			name: "ignored", completions: 1, parallelism: 1, work: once(3) + "; " + nap,
			change:    onExit(3, batchv1.PodFailurePolicyActionIgnore),
			condition: complete, reason: reached, succeeded: 1, starts: 2,
		},
		{
			name: suspended, completions: 4, parallelism: 2, work: nap + "; sleep 1 & wait $!",
			change:    func(s *batchv1.JobSpec) { indexed(s); s.Suspend = new(false) },
			condition: complete, reason: reached, succeeded: 4,
		},
	}
}

// spec returns the spec of a job with the name; give puts the ledger into its pods.
func (k jobKind) spec(give func(*v1.PodSpec), name string) batchv1.JobSpec {
	s := runsOnce(k.completions, k.parallelism, jobScript(name, k.work))
	give(&s.Template.Spec)
	if k.change != nil {
		k.change(&s)
	}
	return s
}

func (u *turmoil) ledgerVolume(s *v1.PodSpec) {
	s.TerminationGracePeriodSeconds = new(int64(1))
	folder := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: u.ledger}}
	s.Volumes = []v1.Volume{{Name: "ledger", VolumeSource: folder}}
	s.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "ledger", MountPath: "/ledger"}}
	s.Containers[0].Env = []v1.EnvVar{
		{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
}

func (u *turmoil) listJobs() []batchv1.Job {
	u.t.Helper()
	list, err := u.client.BatchV1().Jobs(metav1.NamespaceDefault).List(u.t.Context(), metav1.ListOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	return list.Items
}

func kindOf(j *batchv1.Job) (jobKind, bool) {
	kinds := jobKinds()
	i := slices.IndexFunc(kinds, func(k jobKind) bool { return k.name == j.Labels["kind"] })
	if i < 0 {
		return jobKind{}, false // a cron job's
	}
	return kinds[i], true
}

func ended(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue
	})
}

// jobsEnd waits until all jobs have ended, judges them, and deletes those that are no cron job's.
func (u *turmoil) jobsEnd() {
	u.t.Helper()
	for _, j := range u.listJobs() {
		if k, ok := kindOf(&j); ok && k.name == suspended {
			u.kubectl("patch", "job/"+j.Name, "-p", `{"spec":{"suspend":false}}`)
		}
	}
	u.becomes("all jobs have ended", func() (wrong []string) {
		for _, j := range u.listJobs() {
			if !ended(&j) {
				wrong = append(wrong, fmt.Sprintf("job %s: %+v", j.Name, j.Status))
			}
		}
		return wrong
	})
	u.becomes("no pod of a job is left with a finalizer", func() (wrong []string) {
		for _, p := range u.pods(batchv1.JobNameLabel) {
			if slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
				wrong = append(wrong, p.Name)
			}
		}
		return wrong
	})
	for _, j := range u.listJobs() {
		if k, ok := kindOf(&j); ok {
			u.judgeJob(&j, k)
			u.jobs[k.name]++
			u.deleteJob(j.Name)
		}
	}
	u.judgeCron()
}

func (u *turmoil) deleteJob(name string) {
	u.t.Helper()
	policy := metav1.DeletePropagationBackground
	if u.random.IntN(2) == 0 {
		policy = metav1.DeletePropagationForeground
	}
	how := metav1.DeleteOptions{PropagationPolicy: &policy}
	err := u.client.BatchV1().Jobs(metav1.NamespaceDefault).Delete(u.t.Context(), name, how)
	if err != nil && !apierrors.IsNotFound(err) {
		u.t.Fatal(err)
	}
}

// judgeJob compares a job that has ended with what it promised, and with what its containers did.
func (u *turmoil) judgeJob(j *batchv1.Job, k jobKind) {
	u.t.Helper()
	st, text := &j.Status, u.read(j.Name)
	wrong := func(format string, args ...any) {
		u.t.Errorf("job %s: %s: status %+v; its containers:\n%s", j.Name, fmt.Sprintf(format, args...), st, text)
	}
	last := st.Conditions[len(st.Conditions)-1]
	if last.Type != k.condition || last.Reason != k.reason {
		wrong("it ended as %s %s, want %s %s", last.Type, last.Reason, k.condition, k.reason)
	}
	if st.Succeeded != k.succeeded || st.Failed != k.failed {
		wrong("%d succeeded and %d failed, want %d and %d", st.Succeeded, st.Failed, k.succeeded, k.failed)
	}
	uncounted := len(st.UncountedTerminatedPods.Failed) + len(st.UncountedTerminatedPods.Succeeded)
	if st.Active != 0 || *st.Ready != 0 || *st.Terminating != 0 || uncounted > 0 {
		wrong("something is left of it")
	}
	starts, dones := strings.Count(text, "start "), strings.Count(text, "done ")
	if k.starts == 0 {
		if dones < int(k.succeeded) {
			wrong("%d pods have done their work", dones)
		}
		return
	}
	if starts != k.starts || dones != int(k.succeeded) {
		wrong("%d pods started, want %d, and %d have done their work, want %d", starts, k.starts, dones, k.succeeded)
	}
	if !isIndexedJob(j) {
		return
	}
	completed := map[string]string{"indexed": "0-4", "per-index": "1,2"}[k.name]
	if st.CompletedIndexes != completed {
		wrong("completed are %q, want %q", st.CompletedIndexes, completed)
	}
	for i := range k.completions {
		if n := strings.Count(text, fmt.Sprintf("done %d ", i)); n > 1 {
			wrong("index %d was done %d times", i, n)
		}
	}
}

func isIndexedJob(j *batchv1.Job) bool { return *j.Spec.CompletionMode == batchv1.IndexedCompletion }

// judgeCron checks that no minute had two jobs or two pods, and that no more old jobs are kept than asked for.
func (u *turmoil) judgeCron() {
	u.t.Helper()
	runs := map[string]int{}
	for line := range strings.Lines(u.read("tick")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "start 0 "); ok {
			job := rest[:strings.LastIndex(rest, "-")]
			if runs[job]++; runs[job] > 1 {
				u.t.Errorf("job %s has run %d times", job, runs[job])
			}
		}
	}
	u.jobs["cron"] = len(runs)
	u.becomes("the cron job keeps two jobs at most, and knows that they have ended", func() (wrong []string) {
		kept := slices.DeleteFunc(u.listJobs(), func(j batchv1.Job) bool {
			return !strings.HasPrefix(j.Name, "tick-") || !ended(&j)
		})
		cron, err := u.client.BatchV1().CronJobs(metav1.NamespaceDefault).Get(u.t.Context(), "tick", metav1.GetOptions{})
		if err != nil {
			u.t.Fatal(err)
		}
		for _, active := range cron.Status.Active {
			if slices.ContainsFunc(kept, func(j batchv1.Job) bool { return j.Name == active.Name }) {
				wrong = append(wrong, active.Name+" is active")
			}
		}
		if len(kept) > 2 {
			wrong = append(wrong, fmt.Sprint(len(kept), " jobs"))
		}
		return wrong
	})
}

// neverTooMuch holds what must be true at every moment.
func (u *turmoil) neverTooMuch() {
	u.t.Helper()
	if twice := u.read("twice"); twice != "" {
		u.t.Errorf("there were two pods of these names at once: %s", twice)
	}
	for _, j := range u.listJobs() {
		k, ok := kindOf(&j)
		if ok && (j.Status.Succeeded > k.succeeded || j.Status.Failed > k.failed) {
			u.t.Errorf("job %s has counted too much: %+v; its containers:\n%s", j.Name, j.Status, u.read(j.Name))
		}
	}
}
