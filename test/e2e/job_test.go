package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runsOnce is the spec of a job whose pods run a script once.
func runsOnce(completions, parallelism int32, script string) batchv1.JobSpec {
	spec := busybox("").Spec
	spec.RestartPolicy = v1.RestartPolicyNever
	spec.Containers[0].Command = []string{"sh", "-c", script}
	return batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, Template: v1.PodTemplateSpec{Spec: spec}}
}

func (c *cluster) createJob(name string, spec batchv1.JobSpec) {
	c.t.Helper()
	_, err := c.client.BatchV1().Jobs(metav1.NamespaceDefault).Create(c.t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

// jobIs waits for a condition of a job, as a user would, and returns the job.
func (c *cluster) jobIs(name string, condition batchv1.JobConditionType) *batchv1.Job {
	c.t.Helper()
	c.kubectl("wait", "job/"+name, "--for", "condition="+string(condition), "--timeout", fmt.Sprint(patience))
	j, err := c.client.BatchV1().Jobs(metav1.NamespaceDefault).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return j
}

func (c *cluster) podsOf(job string) []v1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

func TestJobs(t *testing.T) {
	c := startCluster(t)
	c.createJob("plain", runsOnce(4, 2, "echo done"))
	if st := c.jobIs("plain", batchv1.JobComplete).Status; st.Succeeded != 4 || st.Failed != 0 || st.CompletionTime == nil {
		t.Errorf("plain: %+v", st)
	}
	if pods := c.podsOf("plain"); len(pods) != 4 || slices.ContainsFunc(pods, func(p v1.Pod) bool { return len(p.Finalizers) > 0 }) {
		t.Errorf("%d pods, or a finalizer is left: %+v", len(pods), pods)
	}

	indexed := runsOnce(3, 3, "echo $JOB_COMPLETION_INDEX $(hostname)")
	indexed.CompletionMode = new(batchv1.IndexedCompletion)
	c.createJob("indexed", indexed)
	if st := c.jobIs("indexed", batchv1.JobComplete).Status; st.CompletedIndexes != "0-2" || st.Succeeded != 3 {
		t.Errorf("indexed: %+v", st)
	}
	for _, p := range c.podsOf("indexed") {
		i := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if got, want := strings.TrimSpace(c.kubectl("logs", p.Name)), i+" indexed-"+i; got != want {
			t.Errorf("pod %s says %q, want %q", p.Name, got, want)
		}
	}

	failing := runsOnce(1, 1, "exit 42")
	failing.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:      batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
	}}}
	c.createJob("failing", failing)
	if j := c.jobIs("failing", batchv1.JobFailed); j.Status.Failed != 1 || j.Status.Conditions[0].Reason != batchv1.JobReasonPodFailurePolicy {
		t.Errorf("failing: %+v", j.Status)
	}

	c.createJob("long", runsOnce(1, 1, loop))
	c.until("the pod runs", func() bool { p := c.podsOf("long"); return len(p) == 1 && ready(&p[0]) })
	c.kubectl("patch", "job/long", "-p", `{"spec":{"suspend":true}}`)
	c.until("no pod is left while it is suspended", func() bool { return len(c.podsOf("long")) == 0 })
	if st := c.jobIs("long", batchv1.JobSuspended).Status; st.Failed != 0 || st.StartTime != nil {
		t.Errorf("suspended: %+v", st)
	}
	c.kubectl("patch", "job/long", "-p", `{"spec":{"suspend":false}}`)
	c.until("it goes on", func() bool { p := c.podsOf("long"); return len(p) == 1 && ready(&p[0]) })
	c.kubectl("delete", "job/long")
	c.until("its pod goes with it", func() bool { return len(c.podsOf("long")) == 0 })

	brief := runsOnce(1, 1, "true")
	brief.TTLSecondsAfterFinished = new(int32(0))
	c.createJob("brief", brief)
	c.kubectl("wait", "job/brief", "--for", "delete", "--timeout", fmt.Sprint(patience))
	c.until("its pod is gone", func() bool { return len(c.podsOf("brief")) == 0 })
}

// A cron job never comes to its time here; that it would is seen in virtual time.
func TestCronJob(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "cronjob", "tick", "--image", firstImage, "--schedule", "0 0 29 2 *", "--", "echo", "tick")
	c.kubectl("create", "job", "now", "--from", "cronjob/tick")
	j := c.jobIs("now", batchv1.JobComplete)
	if ref := metav1.GetControllerOf(j); ref == nil || ref.Kind != "CronJob" || ref.Name != "tick" {
		t.Errorf("owners: %+v", j.OwnerReferences)
	}
	c.until("the cron job has seen it", func() bool {
		cron, err := c.client.BatchV1().CronJobs(metav1.NamespaceDefault).Get(t.Context(), "tick", metav1.GetOptions{})
		return err == nil && cron.Status.LastSuccessfulTime != nil && len(cron.Status.Active) == 0
	})
	// One that has just missed its time starts it now.
	c.kubectl("patch", "cronjob/tick", "--subresource", "status", "--type", "merge", "-p", `{"status":{"lastScheduleTime":"2020-01-01T00:00:00Z"}}`)
	c.until("the missed job has run", func() bool {
		jobs, err := c.client.BatchV1().Jobs(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool { return strings.HasPrefix(j.Name, "tick-") && j.Status.Succeeded == 1 })
	})
	c.kubectl("delete", "cronjob/tick")
	c.until("its jobs go with it", func() bool { return len(c.podsOf("now")) == 0 })
}
