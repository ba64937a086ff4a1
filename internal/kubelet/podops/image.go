package podops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/pullrecord"
)

// pullImage makes sure that a container's image is on the node, following its pull policy.
func (o *Ops) pullImage(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	want, err := wantedImage(in.Pod, op.Name)
	if err != nil {
		return failed(err)
	}
	name, err := normalize(want.image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %v", want.image, err)
		return o.noImage(want, "InspectFailed", podplan.Result{Err: errors.New(msg), Reason: podplan.ReasonInvalidImageName, Message: msg})
	}
	image := &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: want.image, Annotations: in.Pod.Annotations}
	if want.policy != v1.PullAlways {
		if res, found := o.presentImage(ctx, op, in, want, image); found || res.Err != nil {
			return res
		}
	}
	if op.Backoff {
		return podplan.Result{Err: errors.New("image is still not present"), Reason: podplan.ReasonImagePullBackOff}
	}
	return o.fetchImage(ctx, op, in, want, image)
}

// wanted is an image that a container or a volume of a pod needs.
type wanted struct {
	image  string
	policy v1.PullPolicy
	// ref is the object of the events.
	ref *v1.ObjectReference
}

// wantedImage returns what a pull is for: a container, or a volume (podplan.VolumeImage).
func wantedImage(pod *v1.Pod, name string) (wanted, error) {
	w := wanted{policy: v1.PullIfNotPresent, ref: pods.ContainerRef(pod, name)}
	if c := pods.FindContainer(pod, name); c != nil {
		w.image, w.policy = c.Image, cmp.Or(c.ImagePullPolicy, w.policy)
		return w, nil
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Image != nil && podplan.VolumeImage(v.Name) == name {
			w.image, w.policy = v.Image.Reference, cmp.Or(v.Image.PullPolicy, w.policy)
			w.ref.FieldPath = ""
			return w, nil
		}
	}
	return w, fmt.Errorf("the pod's spec has no container or image volume %q", name)
}

// presentImage checks whether the image is on the node already, for this pod. An image that the pod
// may not use counts as absent.
func (o *Ops) presentImage(ctx context.Context, op podplan.Op, in *podplan.Input, want wanted, image *runtimeapi.ImageSpec) (podplan.Result, bool) {
	resp, err := o.Images.ImageStatus(ctx, image, false)
	if err != nil {
		msg := fmt.Sprintf("Failed to inspect image %q: %v", want.image, detail(err))
		res := podplan.Result{Err: err, Reason: podplan.ReasonImageInspectError, Message: msg}
		if ctx.Err() == nil {
			o.noImage(want, "InspectFailed", res)
		}
		return res, false
	}
	usable := resp.Image != nil
	if usable && o.Pulled != nil {
		pull, err := o.Pulled.MustPull(want.image, resp.Image.Id, func() ([]pullrecord.Access, error) { return o.shown(ctx, in.Pod, image.Image) })
		if err != nil {
			return podplan.Result{Err: err, Reason: podplan.ReasonErrImagePull}, false
		}
		usable = !pull
	}
	if usable {
		o.Events.Eventf(want.ref, v1.EventTypeNormal, "Pulled",
			"Container image %q already present on machine and can be accessed by the pod", want.image)
		return podplan.Result{Image: resp.Image.Id}, true
	}
	if want.policy != v1.PullNever {
		return podplan.Result{}, false
	}
	msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", want.image)
	res := podplan.Result{Err: errors.New(msg), Reason: podplan.ReasonErrImageNeverPull, Message: msg}
	if !op.Backoff {
		o.noImage(want, "ErrImageNeverPull", res)
	}
	return res, false
}

// noImage reports by two events why there is no image: what is wrong with the image, and that the
// container fails because of it.
func (o *Ops) noImage(want wanted, event string, res podplan.Result) podplan.Result {
	o.Events.Eventf(want.ref, v1.EventTypeWarning, event, "%s", res.Message)
	o.Events.Eventf(want.ref, v1.EventTypeWarning, "Failed", "Error: %s", res.Reason)
	return res
}

// shown returns the credentials that entitle a pod to an image that others pulled.
func (o *Ops) shown(ctx context.Context, pod *v1.Pod, image string) ([]pullrecord.Access, error) {
	found, err := o.credentials(ctx, pod, image)
	var out []pullrecord.Access
	for _, m := range found {
		if m.access != (pullrecord.Access{}) {
			out = append(out, m.access)
		}
	}
	return out, err
}

// turn waits until a pull may begin, and returns the function to call at its end.
func (o *Ops) turn(ctx context.Context) (func(), error) {
	if o.pulls == nil {
		return func() {}, nil
	}
	select {
	case o.pulls <- struct{}{}:
		return func() { <-o.pulls }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fetchImage pulls, trying each credential that fits until one is accepted.
func (o *Ops) fetchImage(ctx context.Context, op podplan.Op, in *podplan.Input, want wanted, image *runtimeapi.ImageSpec) podplan.Result {
	o.Events.Eventf(want.ref, v1.EventTypeNormal, "Pulling", "Pulling image %q", want.image)
	asked := time.Now()
	done, err := o.turn(ctx)
	if err != nil {
		return failed(err)
	}
	defer done()
	began := time.Now()
	users, err := o.pullUsers(ctx, in.Pod)
	if err != nil {
		return failed(err)
	}
	sandbox, _, err := o.sandboxConfig(in.Pod, op.Attempt, users)
	if err != nil {
		return failed(err)
	}
	told := o.tellProgress(ctx, want, image)
	ref, size, err := o.recordedPull(ctx, in.Pod, want, image, sandbox)
	told()
	if err != nil {
		return o.pullFailed(ctx, want, err)
	}
	took := time.Since(began)
	if o.ImagePulled != nil {
		o.ImagePulled(took, size)
	}
	o.Events.Eventf(want.ref, v1.EventTypeNormal, "Pulled",
		"Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", want.image,
		took.Truncate(time.Millisecond), time.Since(asked).Truncate(time.Millisecond), size)
	return podplan.Result{Image: ref}
}

// recordedPull pulls an image, records before and after who may use it, and returns its size.
func (o *Ops) recordedPull(ctx context.Context, pod *v1.Pod, want wanted, image *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (string, uint64, error) {
	if o.Pulled != nil {
		if err := o.Pulled.Begin(want.image); err != nil {
			return "", 0, err
		}
	}
	ref, with, err := o.pullWith(ctx, pod, image, sandbox)
	if err != nil {
		if o.Pulled != nil {
			err = errors.Join(err, o.Pulled.Failed(want.image))
		}
		return "", 0, err
	}
	id, size := ref, uint64(0)
	if resp, err := o.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); err == nil && resp.Image != nil {
		id, size = resp.Image.Id, resp.Image.Size
	}
	if o.Pulled != nil {
		if err := o.Pulled.Pulled(want.image, id, with); err != nil {
			return "", 0, err
		}
	}
	return ref, size, nil
}

// pullWith tries one credential after the other, and returns the one that was accepted.
func (o *Ops) pullWith(ctx context.Context, pod *v1.Pod, image *runtimeapi.ImageSpec, sandbox *runtimeapi.PodSandboxConfig) (string, pullrecord.Access, error) {
	if o.rate != nil && !o.rate.TryAccept() {
		return "", pullrecord.Access{}, errors.New("pull QPS exceeded")
	}
	found, err := o.credentials(ctx, pod, image.Image)
	if err != nil {
		return "", pullrecord.Access{}, err
	}
	if len(found) == 0 {
		found = []match{{}}
	}
	var errs []error
	for _, m := range found {
		ref, err := o.Images.PullImage(ctx, image, m.auth, sandbox)
		if err == nil {
			return ref, m.access, nil
		}
		errs = append(errs, err)
	}
	return "", pullrecord.Access{}, errors.Join(errs...)
}

// pullReasons are the prefixes of a runtime's error that say more than that a pull failed.
var pullReasons = map[string]string{
	podplan.ReasonRegistryUnavailable: "the registry is unavailable", podplan.ReasonSignatureValidationFailed: "the signature validation failed",
}

func (o *Ops) pullFailed(ctx context.Context, want wanted, err error) podplan.Result {
	if ctx.Err() == nil {
		o.Events.Eventf(want.ref, v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", want.image, err)
	}
	res := podplan.Result{Err: err, Reason: podplan.ReasonErrImagePull, Message: err.Error()}
	for reason, why := range pullReasons {
		if msg, ok := strings.CutPrefix(detail(err), reason); ok {
			res.Reason, res.Message = reason, fmt.Sprintf("image pull failed for %s because %s%s", want.image, why, msg)
		}
	}
	if ctx.Err() == nil {
		o.Events.Eventf(want.ref, v1.EventTypeWarning, "Failed", "Error: %s", res.Reason)
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

// Tell records an event for what the plan decided: that a container is backed off, or why the pod
// ends.
func (o *Ops) Tell(pod *v1.Pod, container, reason, message string) {
	switch reason {
	case podplan.ReasonImagePullBackOff:
		what, _, _ := strings.Cut(message, `": `) // without the reason for the failed pull
		o.containerEvent(pod, container, v1.EventTypeNormal, "BackOff", "%s", what+`"`)
		o.containerEvent(pod, container, v1.EventTypeWarning, "Failed", "Error: %s", reason)
	case podplan.ReasonCrashLoopBackOff:
		o.containerEvent(pod, container, v1.EventTypeWarning, "BackOff",
			"Back-off restarting failed container %s in pod %s", container, pods.Format(pod))
	case podplan.ReasonPreempting:
		o.event(pod, v1.EventTypeWarning, reason, "%s", message)
	case podplan.ReasonDeadlineExceeded:
		o.event(pod, v1.EventTypeNormal, reason, "%s", message)
	}
}
