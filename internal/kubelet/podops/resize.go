package podops

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// resizePod applies to a pod's cgroup and containers what is allocated to them (KEP-1287). in.Pod
// already contains the allocation.
func (o *Ops) resizePod(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	ids := map[string]string{}
	var names []string
	for i := range in.Containers {
		if c := &in.Containers[i]; podplan.Applying(&in.Record, c) {
			ids[c.Name] = c.ID
			names = append(names, c.Name)
		}
	}
	steps := criconfig.ResizeSteps(podplan.WithApplied(in.Pod, &in.Record), in.Pod, names, o.CFS, o.MemoryQoS, o.allocatableMemory())
	if err := o.checkShrink(ctx, in, ids, steps); err != nil {
		return failed(err)
	}
	if err := o.tellSandbox(ctx, in); err != nil {
		return failed(err)
	}
	for _, s := range steps {
		if err := o.resizeStep(ctx, in, ids, s); err != nil {
			return failed(err)
		}
	}
	return podplan.Result{Resized: op.Attempt}
}

func (o *Ops) resizeStep(ctx context.Context, in *podplan.Input, ids map[string]string, s criconfig.ResizeStep) error {
	if s.Container != "" {
		err := o.Runtime.UpdateContainerResources(ctx, ids[s.Container], &runtimeapi.ContainerResources{Linux: s.Limits})
		if err != nil {
			return fmt.Errorf("update resources of container %s: %w", s.Container, err)
		}
		return nil
	}
	if o.Cgroups == nil || !o.Cgroups.Exists(o.Layout.Pod(in.Pod)) {
		return nil
	}
	if err := o.Cgroups.Ensure(o.Layout.Pod(in.Pod), s.Pod); err != nil {
		return fmt.Errorf("update resources of the pod's cgroup: %w", err)
	}
	return nil
}

// tellSandbox gives the runtime a chance to refuse. One that does not implement the call is
// ignored.
func (o *Ops) tellSandbox(ctx context.Context, in *podplan.Input) error {
	overhead, resources := criconfig.SandboxResources(in.Pod, o.CFS)
	for i := range in.Sandboxes {
		s := &in.Sandboxes[i]
		if !s.Ready {
			continue
		}
		_, err := o.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: s.ID, Overhead: overhead, Resources: resources,
		})
		if err != nil && status.Code(err) != codes.Unimplemented {
			return fmt.Errorf("resize rejected by the runtime: %w", err)
		}
	}
	return nil
}

// checkShrink refuses memory limits below current usage: better to wait than to be OOM-killed.
func (o *Ops) checkShrink(ctx context.Context, in *podplan.Input, ids map[string]string, steps []criconfig.ResizeStep) error {
	var errs []error
	for _, s := range steps {
		switch {
		case s.Memory == 0:
		case s.Container != "":
			used, err := o.memoryOf(ctx, ids[s.Container])
			if err == nil && used >= uint64(s.Memory) {
				err = fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", s.Container, s.Memory, used)
			}
			errs = append(errs, err)
		default:
			used, err := o.memoryOfPod(ctx, in)
			if err == nil && used >= uint64(s.Memory) {
				err = fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", s.Memory, used)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	return nil
}

func (o *Ops) memoryOf(ctx context.Context, id string) (uint64, error) {
	st, err := o.Runtime.ContainerStats(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("unable to read memory usage of container %s: %w", id, err)
	}
	if u := st.GetMemory().GetUsageBytes(); u != nil {
		return u.Value, nil
	}
	return st.GetMemory().GetWorkingSetBytes().GetValue(), nil
}

func (o *Ops) memoryOfPod(ctx context.Context, in *podplan.Input) (uint64, error) {
	sum := uint64(0)
	for i := range in.Containers {
		if c := &in.Containers[i]; c.State == podplan.Running {
			used, err := o.memoryOf(ctx, c.ID)
			if err != nil {
				return 0, err
			}
			sum += used
		}
	}
	return sum, nil
}

// TellPod records an event about the pod.
func (o *Ops) TellPod(pod *v1.Pod, e podplan.Event) { o.event(pod, e.Type, e.Reason, "%s", e.Message) }
