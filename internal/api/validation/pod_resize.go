package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// PodResize checks an update of resources (KEP-1287): CPU and memory of all containers except
// ephemeral ones, in amounts that keep the pod's class of service. class is the one that the new
// pod would have.
func PodResize(pod, old *corev1.Pod, class corev1.PodQOSClass) field.ErrorList {
	if pods.IsMirror(old) {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	p := &problems{}
	p.pod(pod)
	at := field.NewPath("spec")
	if old.Status.QOSClass != "" && old.Status.QOSClass != class {
		p.invalid(at, class, "Pod QOS Class may not change as a result of resizing")
	}
	if !nodeCanResize(old) {
		p.forbidden(at, "Pod running on node without support for resize")
	}
	if !p.sameOrder(at.Child("containers"), "containers", pod.Spec.Containers, old.Spec.Containers) ||
		!p.sameOrder(at.Child("initContainers"), "initContainers", pod.Spec.InitContainers, old.Spec.InitContainers) {
		return p.list
	}
	p.resizePodLevel(at, pod.Spec.Resources, old.Spec.Resources)
	for i := range old.Spec.Containers {
		p.resizeContainer(at, at.Child("containers").Index(i), &pod.Spec.Containers[i], &old.Spec.Containers[i], "only cpu and memory resources are mutable")
	}
	for i := range old.Spec.InitContainers {
		c, was, at := &pod.Spec.InitContainers[i], &old.Spec.InitContainers[i], at.Child("initContainers").Index(i)
		p.resizeContainer(at, at, c, was, "only cpu and memory resources for init or sidecar containers are mutable")
		if !pods.IsSidecar(was) && !apiequality.Semantic.DeepEqual(c, was) && restartsToResize(c) {
			p.forbidden(at, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
		}
	}
	return p.list
}

func restartsToResize(c *corev1.Container) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer })
}

// nodeCanResize reports whether the pod's node can resize: such a node reports the resources of
// running containers.
func nodeCanResize(pod *corev1.Pod) bool {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

func (p *problems) sameOrder(at path, what string, list, old []corev1.Container) bool {
	if len(list) != len(old) {
		p.forbidden(at, "%s may not be added or removed on resize", what)
		return false
	}
	same := true
	for i := range old {
		if list[i].Name != old[i].Name {
			p.forbidden(at.Index(i).Child("name"), "%s may not be renamed or reordered on resize", what)
			same = false
		}
	}
	return same
}

func (p *problems) resizeContainer(at, container path, c, old *corev1.Container, only string) {
	resources := container.Child("resources")
	if removed(c.Resources.Requests, old.Resources.Requests) {
		p.forbidden(resources.Child("requests"), "resource requests cannot be removed")
	}
	if removed(c.Resources.Limits, old.Resources.Limits) {
		p.forbidden(resources.Child("limits"), "resource limits cannot be removed")
	}
	rest := c.DeepCopy()
	rest.Resources.Requests = withCompute(c.Resources.Requests, old.Resources.Requests)
	rest.Resources.Limits = withCompute(c.Resources.Limits, old.Resources.Limits)
	rest.ResizePolicy = old.ResizePolicy
	if !apiequality.Semantic.DeepEqual(rest, old) {
		p.forbidden(at, "%s", only)
	}
}

func (p *problems) resizePodLevel(at path, r, old *corev1.ResourceRequirements) {
	if old != nil && r == nil {
		p.forbidden(at.Child("resources"), "pod-level resources cannot be removed")
		return
	}
	if r == nil {
		return
	}
	was := corev1.ResourceRequirements{}
	if old != nil {
		was = *old
	}
	if removed(r.Requests, was.Requests) {
		p.forbidden(at.Child("resources", "requests"), "pod-level resource requests cannot be removed")
	}
	if removed(r.Limits, was.Limits) {
		p.forbidden(at.Child("resources", "limits"), "pod-level resource limits cannot be removed")
	}
	rest := corev1.ResourceRequirements{Requests: withCompute(r.Requests, was.Requests), Limits: withCompute(r.Limits, was.Limits), Claims: r.Claims}
	if !apiequality.Semantic.DeepEqual(rest, was) {
		p.forbidden(at, "only cpu and memory resources are mutable at pod-level")
	}
}

func removed(list, old corev1.ResourceList) bool {
	for name := range old {
		if _, ok := list[name]; !ok {
			return true
		}
	}
	return false
}

// withCompute returns list with the CPU and memory of old.
func withCompute(list, old corev1.ResourceList) corev1.ResourceList {
	out := list.DeepCopy()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		delete(out, name)
		if q, ok := old[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}
