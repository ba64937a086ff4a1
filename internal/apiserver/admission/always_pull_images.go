package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/api/pods"
)

// alwaysPullImages has images pulled each time, so that a pod cannot use a private image that another
// pod, with credentials, has pulled to the node.
type alwaysPullImages struct{}

var (
	_ admission.MutationInterface   = alwaysPullImages{}
	_ admission.ValidationInterface = alwaysPullImages{}
)

func (alwaysPullImages) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (alwaysPullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok || !bringsImages(a, pod) {
		return nil
	}
	for _, use := range imageUses(&pod.Spec) {
		*use.policy = corev1.PullAlways
	}
	return nil
}

func (alwaysPullImages) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok || !bringsImages(a, pod) {
		return nil
	}
	var errs []error
	for _, use := range imageUses(&pod.Spec) {
		if *use.policy != corev1.PullAlways {
			errs = append(errs, forbid(a, "%w", field.NotSupported(use.path, *use.policy, []corev1.PullPolicy{corev1.PullAlways})))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// bringsImages reports whether a request names an image for a container that no container had before.
func bringsImages(a admission.Attributes, pod *corev1.Pod) bool {
	old, ok := a.GetOldObject().(*corev1.Pod)
	if !ok || a.GetOperation() != admission.Update {
		return true
	}
	had := map[string]bool{}
	for c := range pods.AllContainers(&old.Spec) {
		had[c.Image] = true
	}
	for c := range pods.AllContainers(&pod.Spec) {
		if !had[c.Image] {
			return true
		}
	}
	return false
}

// imageUse is where a pod says when an image is pulled.
type imageUse struct {
	path   *field.Path
	policy *corev1.PullPolicy
}

func imageUses(spec *corev1.PodSpec) []imageUse {
	var out []imageUse
	at := field.NewPath("spec")
	add := func(path *field.Path, policy *corev1.PullPolicy) { out = append(out, imageUse{path, policy}) }
	for i := range spec.InitContainers {
		add(at.Child("initContainers").Index(i).Child("imagePullPolicy"), &spec.InitContainers[i].ImagePullPolicy)
	}
	for i := range spec.Containers {
		add(at.Child("containers").Index(i).Child("imagePullPolicy"), &spec.Containers[i].ImagePullPolicy)
	}
	for i := range spec.EphemeralContainers {
		add(at.Child("ephemeralContainers").Index(i).Child("imagePullPolicy"), &spec.EphemeralContainers[i].ImagePullPolicy)
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			add(at.Child("volumes").Index(i).Child("image", "pullPolicy"), &image.PullPolicy)
		}
	}
	return out
}
