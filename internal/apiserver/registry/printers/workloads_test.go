package printers

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestWorkloadColumns(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "w", CreationTimestamp: metav1.NewTime(now.Add(-60e9))}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "x:1"}, {Name: "b", Image: "y"}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}}
	deployment := &appsv1.Deployment{
		ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: selector, Template: template},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 1, AvailableReplicas: 2},
	}
	equal(t, Deployments.Cells(deployment, now), []any{"w", "2/3", int64(1), int64(2), "60s", "a,b", "x:1,y", "app=w"})
	set := &appsv1.ReplicaSet{
		ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(3)), Selector: selector, Template: template},
		Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1},
	}
	equal(t, ReplicaSets.Cells(set, now), []any{"w", int64(3), int64(2), int64(1), "60s", "a,b", "x:1,y", "app=w"})
	daemons := &appsv1.DaemonSet{
		ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: *template.DeepCopy()},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, CurrentNumberScheduled: 4, NumberReady: 3, UpdatedNumberScheduled: 2, NumberAvailable: 1},
	}
	daemons.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	equal(t, DaemonSets.Cells(daemons, now), []any{"w", int64(5), int64(4), int64(3), int64(2), int64(1), "disk=ssd", "60s", "a,b", "x:1,y", "app=w"})
	stateful := &appsv1.StatefulSet{
		ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), Template: template},
		Status: appsv1.StatefulSetStatus{ReadyReplicas: 2},
	}
	equal(t, StatefulSets.Cells(stateful, now), []any{"w", "2/3", "60s", "a,b", "x:1,y"})
	revision := &appsv1.ControllerRevision{ObjectMeta: meta, Revision: 7}
	equal(t, ControllerRevisions.Cells(revision, now), []any{"w", "<none>", int64(7), "60s"})
	revision.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: new(true)}}
	equal(t, ControllerRevisions.Cells(revision, now), []any{"w", "daemonset.apps/d", int64(7), "60s"})
	rc := &corev1.ReplicationController{
		ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(3)), Selector: selector.MatchLabels, Template: &template},
		Status: corev1.ReplicationControllerStatus{Replicas: 2, ReadyReplicas: 1},
	}
	equal(t, ReplicationControllers.Cells(rc, now), []any{"w", int64(3), int64(2), int64(1), "60s", "a,b", "x:1,y", "app=w"})
	pods := &corev1.PodTemplate{ObjectMeta: meta, Template: template}
	equal(t, PodTemplates.Cells(pods, now), []any{"w", "a,b", "x:1,y", "<none>"})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2}}
	budget.Spec.MinAvailable = new(intstr.FromString("50%"))
	equal(t, PodDisruptionBudgets.Cells(budget, now), []any{"w", "50%", "N/A", int64(2), "60s"})
	scale := &autoscalingv1.Scale{ObjectMeta: meta, Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Replicas: 2}}
	equal(t, Scales.Cells(scale, now), []any{"w", int64(3), int64(2), "60s"})
}

func TestJobColumns(t *testing.T) {
	is := func(types ...batchv1.JobConditionType) (out []batchv1.JobCondition) {
		for _, t := range types {
			out = append(out, batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
		}
		return out
	}
	started := metav1.NewTime(now.Add(-90e9))
	for name, tc := range map[string]struct {
		job                          batchv1.Job
		state, completions, duration string
	}{
		"new":        {batchv1.Job{Spec: batchv1.JobSpec{Completions: new(int32(2))}}, "Running", "0/2", ""},
		"work queue": {batchv1.Job{Spec: batchv1.JobSpec{Parallelism: new(int32(3))}, Status: batchv1.JobStatus{Succeeded: 1, StartTime: &started}}, "Running", "1/1 of 3", "90s"},
		"suspended":  {batchv1.Job{Status: batchv1.JobStatus{Conditions: is(batchv1.JobSuspended)}}, "Suspended", "0/1", ""},
		"ending":     {batchv1.Job{Status: batchv1.JobStatus{Conditions: is(batchv1.JobSuccessCriteriaMet)}}, "SuccessCriteriaMet", "0/1", ""},
		"failing":    {batchv1.Job{Status: batchv1.JobStatus{Conditions: is(batchv1.JobFailureTarget)}}, "FailureTarget", "0/1", ""},
		"failed":     {batchv1.Job{Status: batchv1.JobStatus{Conditions: is(batchv1.JobFailureTarget, batchv1.JobFailed)}}, "Failed", "0/1", ""},
		"deleted":    {batchv1.Job{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &started}, Status: batchv1.JobStatus{Conditions: is(batchv1.JobSuspended)}}, "Terminating", "0/1", ""},
		"complete": {batchv1.Job{Spec: batchv1.JobSpec{Completions: new(int32(1))}, Status: batchv1.JobStatus{
			Succeeded: 1, StartTime: &started, CompletionTime: new(metav1.NewTime(now.Add(-60e9))), Conditions: is(batchv1.JobComplete),
		}}, "Complete", "1/1", "30s"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.job.Name = "j"
			equal(t, Jobs.Cells(&tc.job, now), []any{"j", tc.state, tc.completions, tc.duration, "<unknown>", "", "", "<none>"})
		})
	}
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: batchv1.CronJobSpec{Schedule: "@daily"}}
	equal(t, CronJobs.Cells(cron, now), []any{"c", "@daily", "<none>", "<unset>", int64(0), "<none>", "<unknown>", "", "", "<none>"})
	cron.Spec.Suspend, cron.Spec.TimeZone = new(false), new("UTC")
	cron.Status = batchv1.CronJobStatus{Active: make([]corev1.ObjectReference, 2), LastScheduleTime: &started}
	equal(t, CronJobs.Cells(cron, now), []any{"c", "@daily", "UTC", "False", int64(2), "90s", "<unknown>", "", "", "<none>"})
}

func TestEveryWorkloadHasACellForEachColumn(t *testing.T) {
	check := func(name string, columns, cells int) {
		if columns != cells {
			t.Errorf("%s: %d columns, %d cells", name, columns, cells)
		}
	}
	checkTable(check, "replicasets", ReplicaSets, &appsv1.ReplicaSet{})
	checkTable(check, "deployments", Deployments, &appsv1.Deployment{})
	checkTable(check, "daemonsets", DaemonSets, &appsv1.DaemonSet{})
	checkTable(check, "statefulsets", StatefulSets, &appsv1.StatefulSet{})
	checkTable(check, "controllerrevisions", ControllerRevisions, &appsv1.ControllerRevision{})
	checkTable(check, "jobs", Jobs, &batchv1.Job{})
	checkTable(check, "cronjobs", CronJobs, &batchv1.CronJob{})
	checkTable(check, "replicationcontrollers", ReplicationControllers, &corev1.ReplicationController{})
	checkTable(check, "podtemplates", PodTemplates, &corev1.PodTemplate{})
	checkTable(check, "poddisruptionbudgets", PodDisruptionBudgets, &policyv1.PodDisruptionBudget{})
	checkTable(check, "scale", Scales, &autoscalingv1.Scale{})
}
