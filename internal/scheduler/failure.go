package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// fitError holds, for every node, why a pod cannot run there. Its text is the one that users know
// from upstream: reasons with the number of nodes that gave them.
type fitError struct {
	nodes      int
	statuses   map[string]*fwk.Status // by node
	plugins    sets.Set[string]
	preFilter  string
	postFilter string
}

func (f *fitError) Error() string {
	msg := fmt.Sprintf("0/%d nodes are available:", f.nodes)
	if f.preFilter != "" {
		msg += " " + f.preFilter + "."
	} else {
		count := map[string]int{}
		for _, st := range f.statuses {
			for _, r := range st.Reasons() {
				count[r]++
			}
		}
		parts := make([]string, 0, len(count))
		for r, n := range count {
			parts = append(parts, fmt.Sprintf("%d %s", n, r))
		}
		slices.Sort(parts)
		msg += " " + strings.Join(parts, ", ") + "."
	}
	if f.postFilter != "" {
		msg += " " + f.postFilter
	}
	return msg
}

// fail re-queues the pod and reports the reason to its user: first the condition, then the event.
func (s *Scheduler) fail(ctx context.Context, p *framework.Profile, info *framework.QueuedPodInfo, err error, start time.Time) {
	pod := info.GetPod()
	rejected := rejectedBy(err)
	reason := v1.PodReasonUnschedulable
	result := resultUnschedulable
	if len(rejected) == 0 {
		reason, result = v1.PodReasonSchedulerError, resultError
	}
	observe(result, p.Name, time.Since(start))
	if gone(err) {
		s.queue.Remove(pod.UID)
		return
	}
	if !s.queue.Requeue(ctx, info, rejected) || ctx.Err() != nil {
		return
	}
	if perr := s.setCondition(ctx, pod, reason, err.Error()); perr != nil && !apierrors.IsNotFound(perr) {
		klog.FromContext(ctx).Error(perr, "Cannot write the pod's PodScheduled condition; the next attempt writes it again")
	}
	s.recorder.WithLogger(klog.FromContext(ctx)).Eventf(pod, nil, v1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", err.Error())
}

// gone reports whether err means that the pod was deleted, so that there is nothing left to do for
// it.
func gone(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Kind == "pods")
}

// setCondition writes PodScheduled, unless the pod turns out to have a node: its binding may have
// taken effect although the answer was lost.
func (s *Scheduler) setCondition(ctx context.Context, pod *v1.Pod, reason, message string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		err := s.patchCondition(ctx, pod, reason, message)
		if !apierrors.IsConflict(err) {
			return err
		}
		now, gerr := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if gerr != nil || now.Spec.NodeName != "" || now.UID != pod.UID {
			return gerr
		}
		pod = now
		return err
	})
}

// patchCondition patches PodScheduled of this version of the pod, unless it has these values
// already.
func (s *Scheduler) patchCondition(ctx context.Context, pod *v1.Pod, reason, message string) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Reason == reason && c.Message == message {
			return nil
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
