package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newJob is a job as the API server's defaults leave it.
func newJob(completions, parallelism int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "j", UID: "job", ResourceVersion: "1", Generation: 1},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism, BackoffLimit: new(int32(6)),
			CompletionMode: new(batchv1.NonIndexedCompletion), Suspend: new(false), PodReplacementPolicy: new(batchv1.TerminatingOrFailed),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "j"}},
			Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": "j"}},
				Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

func onExit(action batchv1.PodFailurePolicyAction, codes ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
		Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes,
	}}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func exited(code int32) v1.ContainerStatus {
	return v1.ContainerStatus{Name: "c", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}}
}

func ended(code int32, at time.Time) v1.ContainerStatus {
	c := exited(code)
	c.State.Terminated.FinishedAt = metav1.NewTime(at)
	return c
}

type podOption func(*v1.Pod)

// pod is one that runs, and that is to be counted.
func pod(name string, opts ...podOption) *v1.Pod {
	p := podFor(newJob(1, 1), newPod{index: noIndex})
	p.Name, p.UID, p.CreationTimestamp = name, types.UID(name), metav1.NewTime(epoch.Add(-time.Hour))
	p.Status.Phase = v1.PodRunning
	for _, o := range opts {
		o(p)
	}
	return p
}

func pending(p *v1.Pod) { p.Status.Phase = v1.PodPending }

func ready(p *v1.Pod) {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(epoch)}}
}

func succeeded(p *v1.Pod) {
	p.Status.Phase, p.Status.ContainerStatuses = v1.PodSucceeded, []v1.ContainerStatus{ended(0, epoch)}
}

func failed(p *v1.Pod) { exits(1, epoch)(p) }

func exits(code int32, at time.Time) podOption {
	return func(p *v1.Pod) {
		p.Status.Phase, p.Status.ContainerStatuses = v1.PodFailed, []v1.ContainerStatus{ended(code, at)}
	}
}

func untracked(p *v1.Pod) { p.Finalizers = nil }

func terminating(p *v1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(epoch.Add(30*time.Second))), new(int64(30))
}

func index(i string) podOption {
	return func(p *v1.Pod) { p.Annotations = with(p.Annotations, batchv1.JobCompletionIndexAnnotation, i) }
}

func failedOnceBefore() podOption {
	return func(p *v1.Pod) { p.Annotations = with(p.Annotations, batchv1.JobIndexFailureCountAnnotation, "1") }
}
