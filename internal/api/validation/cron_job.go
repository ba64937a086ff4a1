package validation

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// timeSuffix is how much longer than a cron job's name the names of its jobs are: "-" and minutes.
const timeSuffix = 11

// CronJob checks a new cron job.
func CronJob(j *batchv1.CronJob) field.ErrorList {
	p := &problems{}
	p.cronJob(field.NewPath("spec"), &j.Spec, false)
	p.timeZone(field.NewPath("spec", "timeZone"), j.Spec.TimeZone)
	if most := utilvalidation.DNS1035LabelMaxLength - timeSuffix; len(j.Name) > most {
		p.invalid(field.NewPath("metadata", "name"), j.Name, "must be no more than %d characters", most)
	}
	return p.list
}

// CronJobUpdate checks a cron job that replaces old. A time zone that is in a schedule may stay
// there.
func CronJobUpdate(j, old *batchv1.CronJob) field.ErrorList {
	p := &problems{}
	p.cronJob(field.NewPath("spec"), &j.Spec, strings.Contains(old.Spec.Schedule, "TZ"))
	if !apiequality.Semantic.DeepEqual(j.Spec.TimeZone, old.Spec.TimeZone) {
		p.timeZone(field.NewPath("spec", "timeZone"), j.Spec.TimeZone)
	}
	return p.list
}

func (p *problems) cronJob(at path, s *batchv1.CronJobSpec, hadZone bool) {
	if p.present(at.Child("schedule"), s.Schedule) {
		p.schedule(at.Child("schedule"), s, hadZone)
	}
	p.counts(at, counted("startingDeadlineSeconds", s.StartingDeadlineSeconds),
		counted("successfulJobsHistoryLimit", s.SuccessfulJobsHistoryLimit), counted("failedJobsHistoryLimit", s.FailedJobsHistoryLimit))
	if policy := at.Child("concurrencyPolicy"); s.ConcurrencyPolicy == "" {
		p.required(policy, "")
	} else {
		oneOf(p, policy, s.ConcurrencyPolicy, batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)
	}
	job, at := &s.JobTemplate.Spec, at.Child("jobTemplate", "spec")
	p.jobSpec(at, job)
	if job.Selector != nil {
		p.invalid(at.Child("selector"), job.Selector, "`selector` will be auto-generated")
	}
	if m := job.ManualSelector; m != nil && *m {
		p.add(field.NotSupported(at.Child("manualSelector"), *m, []string{"nil", "false"}))
	}
}

func (p *problems) schedule(at path, s *batchv1.CronJobSpec, hadZone bool) {
	if err := parseSchedule(s.Schedule); err != nil {
		p.invalid(at, s.Schedule, "%v", err)
	}
	if !strings.Contains(s.Schedule, "TZ") {
		return
	}
	switch {
	case !hadZone:
		p.invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	case s.TimeZone != nil:
		p.invalid(at, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule")
	}
}

// parseSchedule returns what is wrong with a schedule. The parser panics on some ("TZ=0").
func parseSchedule(schedule string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(schedule)
	return err
}

// zonePart is what stands between the slashes of a time zone's name
// (https://data.iana.org/time-zones/theory.html#naming).
var zonePart = regexp.MustCompile(`^[A-Za-z._0-9+][A-Za-z.\-_0-9+]{0,13}$`)

func (p *problems) timeZone(at path, zone *string) {
	if zone == nil {
		return
	}
	if *zone == "" {
		p.invalid(at, *zone, "timeZone must be nil or non-empty string")
		return
	}
	for part := range strings.SplitSeq(*zone, "/") {
		if part == "." || part == ".." || !zonePart.MatchString(part) {
			p.invalid(at, *zone, "unknown time zone %s", *zone)
			return
		}
	}
	if strings.EqualFold(*zone, "Local") {
		p.invalid(at, *zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		p.invalid(at, *zone, "%v", err)
	}
}
