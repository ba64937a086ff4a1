package podops

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// stopContainer stops the container by the deadline.
func (o *Ops) stopContainer(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	_, hooked := in.PreStops[op.ID]
	if _, hooks := in.InFlight[podplan.PreStopKey(op.ID)]; !hooked && !hooks {
		o.killing(in.Pod, op)
	}
	grace := max(time.Until(op.Deadline), 0)
	if err := o.Runtime.StopContainer(ctx, op.ID, int64(math.Ceil(grace.Seconds()-0.05))); err != nil && !notFound(err) {
		if ctx.Err() == nil {
			o.event(in.Pod, v1.EventTypeWarning, "FailedKillPod", "error killing pod: failed to \"KillContainer\" for %q: %v", op.Name, detail(err))
		}
		return failed(fmt.Errorf("stop container %s: %w", op.ID, err))
	}
	return podplan.Result{}
}

func (o *Ops) killing(pod *v1.Pod, op podplan.Op) {
	o.containerEvent(pod, op.Name, v1.EventTypeNormal, "Killing", "%s", op.Message)
}

// runPreStop runs the hook until it returns or the container has ended.
func (o *Ops) runPreStop(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	o.killing(in.Pod, op)
	hook := o.preStop(ctx, op, in)
	if hook == nil {
		return podplan.Result{}
	}
	if err := o.handle(ctx, in, op, hook); err != nil {
		klog.FromContext(ctx).V(2).Info("PreStop hook failed", "container", op.Name, "containerID", op.ID, "err", err)
		if ctx.Err() != nil && time.Now().Before(op.Deadline) {
			return failed(ctx.Err()) // the hook is not to blame
		}
		// The message may contain secrets of the container: it goes only to the log.
		o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return podplan.Result{}
}

// preStop returns the preStop hook of an instance: from the spec or, for an orphan, from its
// annotations.
func (o *Ops) preStop(ctx context.Context, op podplan.Op, in *podplan.Input) *v1.LifecycleHandler {
	if spec := pods.FindContainer(in.Pod, op.Name); spec != nil {
		if spec.Lifecycle == nil {
			return nil
		}
		return spec.Lifecycle.PreStop
	}
	resp, err := o.Runtime.ContainerStatus(ctx, op.ID, false)
	if err != nil {
		return nil
	}
	text := resp.GetStatus().GetAnnotations()[pods.AnnotationPreStop]
	if text == "" {
		return nil
	}
	hook := &v1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(text), hook); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read the preStop hook in the container's annotations", "containerID", op.ID)
		return nil
	}
	return hook
}
