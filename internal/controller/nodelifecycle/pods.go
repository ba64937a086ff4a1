package nodelifecycle

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podChanged requests a reconciliation of a pod's node if the pod is ready but the node's state is
// unknown: whatever the pod reports, it must not receive requests.
func (c *Controller) podChanged(_, obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok || readiness(pod) != v1.ConditionTrue {
		return
	}
	if node, err := c.nodes.Get(pod.Spec.NodeName); err == nil && unknown(node) {
		c.loop.Add(node.Name)
	}
}

func readiness(pod *v1.Pod) v1.ConditionStatus {
	for _, cond := range pod.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.Status
		}
	}
	return v1.ConditionUnknown
}

// markPodsNotReady takes the pods of a silent node out of service. Reason and message stay the
// kubelet's, as upstream does. It must not be called for a node whose kubelet is alive: the kubelet
// judges its pods itself, and would write again what it sees.
func (c *Controller) markPodsNotReady(ctx context.Context, node string) error {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		if pod.Spec.NodeName == node && readiness(pod) == v1.ConditionTrue {
			errs = append(errs, c.markNotReady(ctx, pod))
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) markNotReady(ctx context.Context, pod *v1.Pod) error {
	next := pod.DeepCopy()
	for i := range next.Status.Conditions {
		if cond := &next.Status.Conditions[i]; cond.Type == v1.PodReady {
			cond.Status, cond.LastTransitionTime = v1.ConditionFalse, metav1.Now()
		}
	}
	switch _, err := c.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil: // includes a conflict with a write of the kubelet, which the retry takes into account
		return fmt.Errorf("mark pod %s/%s as not ready: %w", pod.Namespace, pod.Name, err)
	}
	c.events.Event(pod, v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	return nil
}
