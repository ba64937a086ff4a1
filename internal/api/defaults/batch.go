package defaults

import (
	"math"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Job asks for one pod unless the job says how many, and tries six times. If the number of attempts
// is limited for each index, it is not limited as a whole.
func Job(j *batchv1.Job) {
	spec := &j.Spec
	if spec.Parallelism == nil {
		setPtr(&spec.Completions, 1)
	}
	setPtr(&spec.Parallelism, 1)
	attempts := int32(6)
	if spec.BackoffLimitPerIndex != nil {
		attempts = math.MaxInt32
	}
	setPtr(&spec.BackoffLimit, attempts)
	if len(j.Labels) == 0 {
		j.Labels = spec.Template.Labels // one map: those that select a new job's pods are the job's, too, as with upstream
	}
	setPtr(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	setPtr(&spec.Suspend, false)
	replacement := batchv1.TerminatingOrFailed
	if spec.PodFailurePolicy != nil {
		replacement = batchv1.Failed
	}
	setPtr(&spec.PodReplacementPolicy, replacement)
	setPtr(&spec.ManualSelector, false)
	jobTemplate(spec)
}

// CronJob lets jobs run side by side, and keeps three that succeeded and one that failed.
func CronJob(j *batchv1.CronJob) {
	spec := &j.Spec
	set(&spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	setPtr(&spec.Suspend, false)
	setPtr(&spec.SuccessfulJobsHistoryLimit, 3)
	setPtr(&spec.FailedJobsHistoryLimit, 1)
	jobTemplate(&spec.JobTemplate.Spec)
}

// jobTemplate fills in what the template of a cron job has as well.
func jobTemplate(s *batchv1.JobSpec) {
	if s.PodFailurePolicy != nil {
		for i := range s.PodFailurePolicy.Rules {
			conditions := s.PodFailurePolicy.Rules[i].OnPodConditions
			for j := range conditions {
				set(&conditions[j].Status, corev1.ConditionTrue)
			}
		}
	}
	PodSpec(&s.Template.Spec)
}
