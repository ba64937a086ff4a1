package hollow

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podops"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// executor carries out the operations of a node's pods on the made-up runtime. Volumes are there at
// once, whatever they refer to; so are images.
type executor struct {
	runtime *madeUp
	client  kubernetes.Interface
	status  podops.Flusher
	events  podops.Recorder
	delay   time.Duration // of a sandbox
}

var (
	_ podworker.Executor = (*executor)(nil)
	_ podworker.Prober   = prober{}
)

// Do implements podworker.Executor.
func (e *executor) Do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	uid := in.Pod.UID
	switch op.Kind {
	case podplan.RunSandbox:
		return e.runSandbox(ctx, op, in.Pod)
	case podplan.StopSandbox:
		e.runtime.stopSandbox(op.ID)
	case podplan.RemoveSandbox:
		e.runtime.removeSandbox(op.ID)
	case podplan.PullImage:
		return podplan.Result{Image: imageID(op.Image)}
	case podplan.CreateContainer:
		return e.create(op, in.Pod)
	case podplan.StartContainer:
		return e.start(op, in.Pod)
	case podplan.RunHook, podplan.RunPreStop:
		return e.hook(ctx, op, in.Pod)
	case podplan.StopContainer:
		if _, told := in.PreStops[op.ID]; !told {
			e.tell(in.Pod, op.Name, "Killing", op.Message)
		}
		e.runtime.stop(uid, op.ID, 0)
	case podplan.RemoveContainer:
		e.runtime.remove(uid, op.ID)
	case podplan.ResizePod:
		return podplan.Result{Resized: op.Attempt}
	case podplan.Forget:
		return e.forget(ctx, in)
	}
	return podplan.Result{} // the rest concerns what a hollow node does not have: volumes, control groups
}

func (e *executor) runSandbox(ctx context.Context, op podplan.Op, pod *v1.Pod) podplan.Result {
	if err := pause(ctx, e.delay); err != nil {
		return podplan.Result{Err: err}
	}
	id, err := e.runtime.runSandbox(pod, op.Attempt)
	if err != nil {
		e.events.Eventf(pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	}
	return podplan.Result{Sandbox: id, Err: err}
}

// create makes a container. An annotation that cannot be read is reported where a user looks: in the
// container's status.
func (e *executor) create(op podplan.Op, pod *v1.Pod) podplan.Result {
	spec := pods.FindContainer(pod, op.Name)
	if spec == nil {
		return podplan.Result{Err: fmt.Errorf("container %q is not in the pod's spec", op.Name)}
	}
	if _, err := endingOf(pod, spec); err != nil {
		return e.failed(op, pod, podplan.ReasonCreateConfigError, err)
	}
	if err := e.runtime.create(op.SandboxID, spec, op.Attempt); err != nil {
		return e.failed(op, pod, podplan.ReasonCreateContainerError, err)
	}
	e.tell(pod, op.Name, "Pulled", fmt.Sprintf("Container image %q already present on machine", spec.Image))
	e.tell(pod, op.Name, "Created", "Container created")
	return podplan.Result{}
}

func (e *executor) start(op podplan.Op, pod *v1.Pod) podplan.Result {
	var by *ending
	var err error
	if spec := pods.FindContainer(pod, op.Name); spec != nil {
		by, err = endingOf(pod, spec)
	}
	if err == nil {
		err = e.runtime.start(pod.UID, op.ID, by)
	}
	if err != nil {
		return e.failed(op, pod, podplan.ReasonRunContainerError, err)
	}
	e.tell(pod, op.Name, "Started", "Container started")
	return podplan.Result{}
}

func (e *executor) failed(op podplan.Op, pod *v1.Pod, reason string, err error) podplan.Result {
	e.events.Eventf(pods.ContainerRef(pod, op.Name), v1.EventTypeWarning, "Failed", "Error: %v", err)
	return podplan.Result{Err: err, Reason: reason, Message: err.Error()}
}

// hook does what a hook can do without a container: wait.
func (e *executor) hook(ctx context.Context, op podplan.Op, pod *v1.Pod) podplan.Result {
	if op.Kind == podplan.RunPreStop {
		e.tell(pod, op.Name, "Killing", op.Message)
	}
	handler := hookOf(op.Kind, pods.FindContainer(pod, op.Name))
	if handler == nil || handler.Sleep == nil {
		return podplan.Result{}
	}
	return podplan.Result{Err: pause(ctx, time.Duration(handler.Sleep.Seconds)*time.Second)}
}

func hookOf(kind podplan.Kind, spec *v1.Container) *v1.LifecycleHandler {
	if spec == nil || spec.Lifecycle == nil {
		return nil
	}
	if kind == podplan.RunPreStop {
		return spec.Lifecycle.PreStop
	}
	return spec.Lifecycle.PostStart
}

func (e *executor) forget(ctx context.Context, in *podplan.Input) podplan.Result {
	if in.Absent {
		return podplan.Result{}
	}
	return podplan.Result{Err: podops.Delete(ctx, e.client, e.status, in.Pod)}
}

// tell records an event about a container.
func (e *executor) tell(pod *v1.Pod, container, reason, message string) {
	e.events.Eventf(pods.ContainerRef(pod, container), v1.EventTypeNormal, reason, "%s", message)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prober has no probes to run.
type prober struct{ *madeUp }

// Sync implements podworker.Prober.
func (prober) Sync(context.Context, *v1.Pod, []string, []podplan.ProbeTarget) {}

// Results implements podworker.Prober.
func (p prober) Results(uid types.UID) map[string]podplan.Probe { return p.probes(uid) }

// Remove implements podworker.Prober.
func (prober) Remove(types.UID) {}
