// Package disrupt deletes pods that have to go for somebody else's sake, and says why: in an event, and in the condition
// DisruptionTarget, which outlives what the pod's containers say of their end.
package disrupt

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/api/pods"
)

// Cause is why pods are deleted: what the condition says, and the event with its message.
type Cause struct{ Reason, Message, Event, Note string }

// Delete deletes the pod, and reports whether it was still there. That another pod has its name by now is a conflict,
// which a controller.Loop retries in silence, as it does if a webhook does not want the deletion now.
func Delete(ctx context.Context, client clientset.Interface, events record.EventRecorder, pod *v1.Pod, why Cause) (bool, error) {
	if err := mark(ctx, client, events, pod, why); err != nil {
		return false, fmt.Errorf("set the DisruptionTarget condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return true, nil
}

// mark tells of the deletion, unless that has been done.
func mark(ctx context.Context, client clientset.Interface, events record.EventRecorder, pod *v1.Pod, why Cause) error {
	if is := pods.FindCondition(&pod.Status, v1.DisruptionTarget); is != nil && is.Status == v1.ConditionTrue && is.Reason == why.Reason {
		return nil
	}
	events.Event(pod, v1.EventTypeNormal, why.Event, why.Note)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: why.Reason, Message: why.Message,
			ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
