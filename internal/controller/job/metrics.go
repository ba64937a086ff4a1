package job

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/controller/written"
)

func counter(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: "job_controller", Name: name, Help: help}, labels)
}

// Metrics under upstream's names.
var (
	syncDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "job_controller", Name: "job_sync_duration_seconds", Help: "How long it took to sync a job.",
		Buckets: metrics.ExponentialBuckets(0.004, 2, 15),
	}, []string{"completion_mode", "result", "action"})
	syncs        = counter("job_syncs_total", "Syncs of jobs.", "completion_mode", "result", "action")
	finishedJobs = counter("jobs_finished_total", "Jobs that finished.", "completion_mode", "result", "reason")
	externalJobs = counter("jobs_by_external_controller_total",
		"Jobs that are managed by another controller.", "controller_name")
	finishedPods  = counter("job_pods_finished_total", "Pods that ended and were counted.", "completion_mode", "result")
	policyActions = counter("pod_failures_handled_by_failure_policy_total",
		"Failed pods that a rule matched, by the rule's action.", "action")
	trackedPods = counter("terminated_pods_tracking_finalizer_total",
		"Ended pods with the finalizer batch.kubernetes.io/job-tracking: how many came (add) and went (delete).", "event")
	finishedIndexes = counter("job_finished_indexes_total",
		"Indexes that finished, by result and kind of limit.", "status", "backoffLimit")
	createdPods = counter("job_pods_creation_total",
		"Pods that were created, by reason and success.", "reason", "status")
	staleSyncs = counter("stale_sync_skips_total",
		"Syncs that were put off because the informers were behind.", "group", "resource")
)

func init() {
	legacyregistry.MustRegister(syncDuration, syncs, finishedJobs, externalJobs, finishedPods, policyActions, trackedPods,
		finishedIndexes, createdPods, staleSyncs)
}

// Values of the label action of syncs.
const (
	tracking    = "tracking"
	podsCreated = "pods_created"
	podsDeleted = "pods_deleted"
)

// countEnds counts what a status has counted since an older one.
func countEnds(j *batchv1.Job, was, is *batchv1.JobStatus) {
	succeeded := int(is.Succeeded - was.Succeeded)
	if isIndexed(j) {
		// Indexes that the job wants no more leave its counter, not ours.
		limit := completions(j)
		succeeded = parseIndexes(is.CompletedIndexes, limit).len() - parseIndexes(was.CompletedIndexes, limit).len()
		kind := "global"
		if limitsIndexes(j) {
			kind = "perIndex"
			addTo(finishedIndexes, lostIn(is, limit)-lostIn(was, limit), "failed", kind)
		}
		addTo(finishedIndexes, succeeded, "succeeded", kind)
	}
	addTo(finishedPods, succeeded, mode(j), "succeeded")
	addTo(finishedPods, int(is.Failed-was.Failed), mode(j), "failed")
}

func lostIn(st *batchv1.JobStatus, limit int) int {
	if st.FailedIndexes == nil {
		return 0
	}
	return parseIndexes(*st.FailedIndexes, limit).len()
}

func addTo(c *metrics.CounterVec, n int, labels ...string) {
	if n > 0 {
		c.WithLabelValues(labels...).Add(float64(n))
	}
}

// creationReason is the label of created pods.
func creationReason(c *census) string {
	policy := c.job.Spec.PodReplacementPolicy
	switch {
	case policy != nil && *policy == batchv1.Failed && c.failed > 0:
		return "recreate_failed"
	case c.failed > 0 || len(c.terminating) > 0:
		return "recreate_terminating_or_failed"
	}
	return "new"
}

// waited counts the syncs that wait for what was written to a resource.
type waited struct {
	*written.Log
	group, resource string
}

func (c waited) Caught(key string) bool {
	caught := c.Log.Caught(key)
	if !caught {
		staleSyncs.WithLabelValues(c.group, c.resource).Inc()
	}
	return caught
}
