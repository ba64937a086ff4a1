package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// facts are all that a plan follows from. Nothing of them is changed.
type facts struct {
	cron *batchv1.CronJob
	jobs []*batchv1.Job // those that it controls
	// gone are active jobs that really do not exist any more.
	gone map[types.UID]bool
	// since is when the schedule became what it is, if somebody saw that.
	since time.Time
	now   time.Time
}

// plan is what has to be done about a cron job.
type plan struct {
	// status is the new one, before jobs are replaced or created.
	status batchv1.CronJobStatus
	// remove are finished jobs, beyond those that are kept.
	remove []*batchv1.Job
	// replace are active jobs that have to go before the new one starts.
	replace []v1.ObjectReference
	// start is the time for which a job has to be created. Zero is none.
	start time.Time
	// latest is the time of the schedule that has come last. Zero is none.
	latest time.Time
	// next is when to look again. Zero is when something changes.
	next   time.Time
	events []event
}

// event is one that a user sees, once for as long as the same plan would tell it again.
type event struct {
	kind, reason, message string
	at                    time.Time // of the schedule, if it is about one
}

func (p *plan) warn(reason, format string, args ...any) {
	p.events = append(p.events, event{v1.EventTypeWarning, reason, fmt.Sprintf(format, args...), p.latest})
}

func (p *plan) tell(reason, format string, args ...any) {
	p.events = append(p.events, event{v1.EventTypeNormal, reason, fmt.Sprintf(format, args...), p.latest})
}

// planFor says what to do about a cron job.
func planFor(f facts) plan {
	p := plan{status: *f.cron.Status.DeepCopy()}
	for _, j := range f.jobs {
		p.observe(f, j)
	}
	p.drop(f)
	p.limit(f)
	spec := &f.cron.Spec
	if f.cron.DeletionTimestamp != nil {
		return p
	}
	if zone := spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			p.warn("UnknownTimeZone", "invalid timeZone: %q: %s", *zone, err)
			return p
		}
	}
	if spec.Suspend != nil && *spec.Suspend {
		return p
	}
	if hasZone(spec.Schedule) {
		p.warn("UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see "+
			"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec.Schedule)
	}
	s, err := parse(spec)
	if err != nil {
		p.warn("UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule, err)
		return p
	}
	p.schedule(f, s)
	return p
}

// observe puts into the status what a job of the cron job tells.
func (p *plan) observe(f facts, j *batchv1.Job) {
	st := &p.status
	isActive := slices.ContainsFunc(st.Active, func(r v1.ObjectReference) bool { return r.UID == j.UID })
	end := endOf(j)
	at, ours := scheduledTime(f.cron, j)
	if ours && !at.After(f.now) && (st.LastScheduleTime == nil || at.After(st.LastScheduleTime.Time)) {
		st.LastScheduleTime = new(metav1.NewTime(at)) // we were stopped before we could say so
	}
	switch {
	case isActive && end != "":
		p.forget(j.UID)
		p.tell("SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, end)
	case isActive || end != "" || j.DeletionTimestamp != nil:
	case ours:
		st.Active = append(st.Active, reference(j))
	default:
		p.warn("UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
	}
	done, last := j.Status.CompletionTime, st.LastSuccessfulTime
	if end == batchv1.JobComplete && done != nil && (last == nil || done.After(last.Time)) {
		st.LastSuccessfulTime = done
	}
}

func (p *plan) forget(uid types.UID) {
	p.status.Active = without(p.status.Active, uid)
}

// without returns a new list that lacks the object with the UID.
func without(list []v1.ObjectReference, uid types.UID) []v1.ObjectReference {
	return slices.DeleteFunc(slices.Clone(list), func(r v1.ObjectReference) bool { return r.UID == uid })
}

// drop takes jobs that are gone out of the list of active ones.
func (p *plan) drop(f facts) {
	for _, r := range slices.Clone(p.status.Active) {
		if f.gone[r.UID] {
			p.tell("MissingJob", "Active job went missing: %v", r.Name)
			p.forget(r.UID)
		}
	}
}

// limit plans to remove the oldest finished jobs.
func (p *plan) limit(f facts) {
	for end, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: f.cron.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: f.cron.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		ended := slices.DeleteFunc(slices.Clone(f.jobs), func(j *batchv1.Job) bool {
			return j.DeletionTimestamp != nil || endOf(j) != end
		})
		slices.SortFunc(ended, compareStart)
		p.remove = append(p.remove, ended[:max(0, len(ended)-int(*limit))]...)
	}
}

// compareStart orders jobs by when they started; those that never did come last.
func compareStart(a, b *batchv1.Job) int {
	s, t := a.Status.StartTime, b.Status.StartTime
	switch {
	case s == nil && t != nil:
		return 1
	case s != nil && t == nil:
		return -1
	case s != nil && !s.Equal(t):
		return s.Compare(t.Time)
	}
	return cmp.Compare(a.Name, b.Name)
}

// schedule plans the job of the latest time that has come, if it has none yet, and when to look again.
func (p *plan) schedule(f facts, s cron.Schedule) {
	spec := &f.cron.Spec
	t, err := timesOf(s, p.begin(f), f.now)
	if err != nil {
		p.warn("InvalidSchedule", "invalid schedule: %s : %s", spec.Schedule, err)
		return
	}
	p.next, p.latest = t.next, t.latest
	if t.latest.IsZero() {
		return
	}
	if tooLate(spec, t.latest, f.now) {
		p.warn("MissSchedule", "Missed scheduled time to start a job: %s", t.latest.UTC().Format(time.RFC1123Z))
		return
	}
	if t.many {
		p.warn("TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	name := jobName(f.cron, t.latest)
	switch {
	case slices.ContainsFunc(p.status.Active, func(r v1.ObjectReference) bool { return r.Name == name }):
		return
	case spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(p.status.Active) > 0:
		p.tell("JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		p.replace = slices.Clone(p.status.Active)
	}
	p.start = t.latest
}

// begin returns the time after which a schedule's times count: the last one that was met, or the
// creation. Times of a schedule from before it was one do not count.
func (p *plan) begin(f facts) time.Time {
	begin := f.cron.CreationTimestamp.Time
	if last := p.status.LastScheduleTime; last != nil {
		begin = last.Time
	}
	if f.since.After(begin) {
		return f.since
	}
	return begin
}

// endOf returns the condition with which a job is finished, or "".
func endOf(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// jobName is the same for each attempt to create the job of a time: there can be only one.
func jobName(c *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", c.Name, at.Unix()/60)
}

// scheduledTime returns the time for which a job was created, if it was created for one.
func scheduledTime(c *batchv1.CronJob, j *batchv1.Job) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	return at, err == nil && j.Name == jobName(c, at)
}

func reference(j *batchv1.Job) v1.ObjectReference {
	return v1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: j.Namespace, Name: j.Name,
		UID: j.UID, ResourceVersion: j.ResourceVersion,
	}
}

// jobFor returns the job of a time.
func jobFor(c *batchv1.CronJob, at time.Time) *batchv1.Job {
	template := c.Spec.JobTemplate.DeepCopy()
	annotations := maps.Clone(template.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	zone := time.UTC
	if name := c.Spec.TimeZone; name != nil {
		if known, err := time.LoadLocation(*name); err == nil {
			zone = known
		}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: jobName(c, at), Labels: template.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, kind)},
		},
		Spec: template.Spec,
	}
}
