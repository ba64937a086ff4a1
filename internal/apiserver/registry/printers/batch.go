package printers

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"wherry.dev/internal/apiserver/registry"
)

// Jobs is the table of jobs.
var Jobs = registry.Table[*batchv1.Job]{
	Columns: withTemplate(batchv1.JobSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		column("Status", "Status of the job."),
		column("Completions", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
		column("Duration", "Time required to complete the job."),
		ageColumn),
	Cells: func(j *batchv1.Job, now time.Time) []any {
		names, images := namesAndImages(j.Spec.Template.Spec.Containers)
		return []any{
			j.Name, jobState(j), completions(j), jobDuration(&j.Status, now), age(j, now),
			names, images, metav1.FormatLabelSelector(j.Spec.Selector),
		}
	},
}

// jobState returns the first of these that holds.
func jobState(j *batchv1.Job) string {
	is := func(t batchv1.JobConditionType) bool {
		return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == t && c.Status == corev1.ConditionTrue
		})
	}
	switch {
	case is(batchv1.JobComplete):
		return "Complete"
	case is(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case is(batchv1.JobSuspended):
		return "Suspended"
	case is(batchv1.JobFailureTarget):
		return "FailureTarget"
	case is(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	if n := j.Spec.Completions; n != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *n)
	}
	if n := or(j.Spec.Parallelism, 0); n > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, n)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(s *batchv1.JobStatus, now time.Time) string {
	if s.StartTime == nil {
		return ""
	}
	if s.CompletionTime != nil {
		now = s.CompletionTime.Time
	}
	return duration.HumanDuration(now.Sub(s.StartTime.Time))
}

// CronJobs is the table of cron jobs.
var CronJobs = registry.Table[*batchv1.CronJob]{
	Columns: withTemplate(batchv1.JobSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		column("Schedule", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]),
		column("Timezone", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]),
		boolean("Suspend", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]),
		integer("Active", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
		column("Last Schedule", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
		ageColumn),
	Cells: func(j *batchv1.CronJob, now time.Time) []any {
		names, images := namesAndImages(j.Spec.JobTemplate.Spec.Template.Spec.Containers)
		suspend, last := unset, none
		if j.Spec.Suspend != nil {
			suspend = map[bool]string{true: "True", false: "False"}[*j.Spec.Suspend]
		}
		if j.Status.LastScheduleTime != nil {
			last = since(j.Status.LastScheduleTime.Time, now)
		}
		return []any{
			j.Name, j.Spec.Schedule, or(j.Spec.TimeZone, none), suspend, int64(len(j.Status.Active)), last, age(j, now),
			names, images, metav1.FormatLabelSelector(j.Spec.JobTemplate.Spec.Selector),
		}
	},
}
