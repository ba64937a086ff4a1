package podops

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// hookGrace is what a container has between the stop signal and the kill when its
// preStop hook used the grace period up.
const hookGrace = 2 * time.Second

// stopContainer runs the preStop hook and stops the container by the deadline.
func (o *Ops) stopContainer(ctx context.Context, op podplan.Op, in *podplan.Input) podworker.Result {
	o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Killing", "%s", op.Message)
	least := time.Duration(0)
	if hook := o.preStop(ctx, op, in); hook != nil && op.Reason != podplan.ReasonRestartAll {
		least = hookGrace
		if _, begun := o.stopHooks.LoadOrStore(op.ID, true); !begun {
			o.runPreStop(ctx, op, in, hook)
		}
	}
	if ctx.Err() != nil {
		return failed(ctx.Err())
	}
	grace := max(time.Until(op.Deadline), least)
	if err := o.Runtime.StopContainer(ctx, op.ID, int64(math.Ceil(grace.Seconds()-0.05))); err != nil && !notFound(err) {
		if ctx.Err() == nil {
			o.event(in.Pod, v1.EventTypeWarning, "FailedKillPod", "error killing pod: failed to \"KillContainer\" for %q: %v", op.Name, detail(err))
		}
		return failed(fmt.Errorf("stop container %s: %w", op.ID, err))
	}
	o.stopHooks.Delete(op.ID)
	return podworker.Result{}
}

// preStop returns the hook of an instance: of the spec, or, for an orphan, what
// was written into its annotations.
func (o *Ops) preStop(ctx context.Context, op podplan.Op, in *podplan.Input) *v1.LifecycleHandler {
	if spec := podplan.FindContainer(in.Pod, op.Name); spec != nil {
		if spec.Lifecycle == nil || !running(in, op.ID) {
			return nil
		}
		return spec.Lifecycle.PreStop
	}
	resp, err := o.Runtime.ContainerStatus(ctx, op.ID, false)
	if err != nil {
		return nil
	}
	text := resp.GetStatus().GetAnnotations()[podconfig.AnnotationPreStop]
	if text == "" {
		return nil
	}
	hook := &v1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(text), hook); err != nil {
		klog.FromContext(ctx).Error(err, "preStop hook in the container's annotations cannot be read", "containerID", op.ID)
		return nil
	}
	return hook
}

func running(in *podplan.Input, id string) bool {
	for i := range in.Containers {
		if in.Containers[i].ID == id {
			return in.Containers[i].State == podplan.Running
		}
	}
	return false
}

// runPreStop runs the hook until the deadline at most.
func (o *Ops) runPreStop(ctx context.Context, op podplan.Op, in *podplan.Input, hook *v1.LifecycleHandler) {
	ctx, cancel := context.WithDeadline(ctx, op.Deadline)
	defer cancel()
	if err := o.handle(ctx, in, op, hook); err != nil {
		klog.FromContext(ctx).V(2).Info("PreStop hook failed", "container", op.Name, "containerID", op.ID, "err", err)
		// The message may hold secrets of the container: it stays in the log.
		o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}
