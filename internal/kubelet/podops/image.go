package podops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// pullImage makes sure that a container's image is on the node, by its pull policy.
func (o *Ops) pullImage(ctx context.Context, op podplan.Op, in *podplan.Input) podworker.Result {
	spec := podplan.FindContainer(in.Pod, op.Name)
	if spec == nil {
		return failed(fmt.Errorf("container %q is not in the pod's spec", op.Name))
	}
	name, err := normalize(spec.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %v", spec.Image, err)
		o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "InspectFailed", "%s", msg)
		return podworker.Result{Err: errors.New(msg), Reason: podplan.ReasonInvalidImageName, Message: msg}
	}
	image := &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: spec.Image, Annotations: in.Pod.Annotations}
	policy := spec.ImagePullPolicy
	if policy == "" {
		policy = v1.PullIfNotPresent
	}
	if policy != v1.PullAlways {
		if res, found := o.presentImage(ctx, op, in, spec, image, policy); found || res.Err != nil {
			return res
		}
	}
	if op.Backoff {
		return podworker.Result{Err: errors.New("image is still not present"), Reason: podplan.ReasonImagePullBackOff}
	}
	return o.fetchImage(ctx, op, in, spec, image)
}

// presentImage looks whether the image is on the node already.
func (o *Ops) presentImage(ctx context.Context, op podplan.Op, in *podplan.Input, spec *v1.Container, image *runtimeapi.ImageSpec, policy v1.PullPolicy) (podworker.Result, bool) {
	resp, err := o.Images.ImageStatus(ctx, image, false)
	if err != nil {
		msg := fmt.Sprintf("Failed to inspect image %q: %v", spec.Image, detail(err))
		if ctx.Err() == nil {
			o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "InspectFailed", "%s", msg)
		}
		return podworker.Result{Err: err, Reason: podplan.ReasonImageInspectError, Message: msg}, false
	}
	if resp.Image != nil {
		o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Pulled",
			"Container image %q already present on machine and can be accessed by the pod", spec.Image)
		return podworker.Result{Image: resp.Image.Id}, true
	}
	if policy != v1.PullNever {
		return podworker.Result{}, false
	}
	msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", spec.Image)
	if !op.Backoff {
		o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "ErrImageNeverPull", "%s", msg)
	}
	return podworker.Result{Err: errors.New(msg), Reason: podplan.ReasonErrImageNeverPull, Message: msg}, false
}

// fetchImage pulls, with each credential that fits until one is taken.
func (o *Ops) fetchImage(ctx context.Context, op podplan.Op, in *podplan.Input, spec *v1.Container, image *runtimeapi.ImageSpec) podworker.Result {
	o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Pulling", "Pulling image %q", spec.Image)
	began := time.Now()
	sandbox, _, err := o.sandboxConfig(in.Pod, op.Attempt)
	if err != nil {
		return failed(err)
	}
	ref, err := o.pullWith(ctx, in.Pod, image, sandbox)
	if err != nil {
		return o.pullFailed(ctx, op, in.Pod, spec.Image, err)
	}
	took := time.Since(began)
	size := uint64(0)
	if resp, err := o.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); err == nil && resp.Image != nil {
		size = resp.Image.Size
	}
	if o.ImagePulled != nil {
		o.ImagePulled(took, size)
	}
	shown := took.Truncate(time.Millisecond)
	o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Pulled",
		"Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", spec.Image, shown, shown, size)
	return podworker.Result{Image: ref}
}

func (o *Ops) pullWith(ctx context.Context, pod *v1.Pod, image *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	auths, err := o.credentials(ctx, pod, image.Image)
	if err != nil {
		return "", err
	}
	if len(auths) == 0 {
		return o.Images.PullImage(ctx, image, nil, sandbox)
	}
	var errs []error
	for _, auth := range auths {
		ref, err := o.Images.PullImage(ctx, image, auth, sandbox)
		if err == nil {
			return ref, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func (o *Ops) pullFailed(ctx context.Context, op podplan.Op, pod *v1.Pod, image string, err error) podworker.Result {
	if ctx.Err() == nil {
		o.containerEvent(pod, op.Name, v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", image, err)
	}
	res := podworker.Result{Err: err, Reason: podplan.ReasonErrImagePull, Message: err.Error()}
	if msg, ok := strings.CutPrefix(detail(err), podplan.ReasonRegistryUnavailable); ok {
		res.Reason = podplan.ReasonRegistryUnavailable
		res.Message = fmt.Sprintf("image pull failed for %s because the registry is unavailable%s", image, msg)
	}
	if ctx.Err() == nil {
		o.containerEvent(pod, op.Name, v1.EventTypeWarning, "Failed", "Error: %s", res.Reason)
	}
	return res
}

// normalize adds the default tag to an image's name.
func normalize(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

// Tell makes an event of what the plan decided: that a container is backed off, or
// that the pod's time is over.
func (o *Ops) Tell(pod *v1.Pod, container, reason, message string) {
	switch reason {
	case podplan.ReasonImagePullBackOff:
		if spec := podplan.FindContainer(pod, container); spec != nil {
			o.containerEvent(pod, container, v1.EventTypeNormal, "BackOff", "Back-off pulling image %q", spec.Image)
			o.containerEvent(pod, container, v1.EventTypeWarning, "Failed", "Error: %s", reason)
		}
	case podplan.ReasonCrashLoopBackOff:
		o.containerEvent(pod, container, v1.EventTypeWarning, "BackOff",
			"Back-off restarting failed container %s in pod %s", container, podconfig.Format(pod))
	case podplan.ReasonDeadlineExceeded:
		o.event(pod, v1.EventTypeNormal, reason, "%s", message)
	}
}
