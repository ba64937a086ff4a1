package pods

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Containers yields the init containers of a pod, and then its containers.
func Containers(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [...][]v1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// AllContainers yields what Containers yields, and then the ephemeral containers.
func AllContainers(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for c := range Containers(spec) {
			if !yield(c) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			if !yield((*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// Visit calls f with all containers, in the order of AllContainers, and where they are in the spec.
func Visit(spec *v1.PodSpec, at *field.Path, f func(*field.Path, *v1.Container)) {
	for i := range spec.InitContainers {
		f(at.Child("initContainers").Index(i), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		f(at.Child("containers").Index(i), &spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		f(at.Child("ephemeralContainers").Index(i), (*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
}

// FindContainer returns the container, init or ephemeral container with that name, or nil.
func FindContainer(pod *v1.Pod, name string) *v1.Container {
	for c := range AllContainers(&pod.Spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// IsInit reports whether the pod has an init container with that name.
func IsInit(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

// IsEphemeral reports whether the pod has an ephemeral container with that name.
func IsEphemeral(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// IsSidecar reports whether an init container keeps running beside the others (KEP-753).
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Hash identifies the part of a container's spec that cannot change without a new instance.
// Everything else is immutable or can be changed in place.
func Hash(c *v1.Container) string {
	data, err := json.Marshal([]string{c.Name, c.Image})
	if err != nil {
		return "" // strings always marshal
	}
	h := fnv.New32a()
	_, _ = h.Write(data)
	return fmt.Sprintf("%x", h.Sum32())
}

// ContainerRef refers to a container of a pod in an event.
func ContainerRef(pod *v1.Pod, name string) *v1.ObjectReference {
	field := "containers"
	switch {
	case IsInit(pod, name):
		field = "initContainers"
	case IsEphemeral(pod, name):
		field = "ephemeralContainers"
	}
	return &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: "spec." + field + "{" + name + "}",
	}
}

// OldAppArmor yields the containers of which only an annotation of older releases says what their AppArmor profile is: the
// annotation, and the profile, or nil if it says nothing that is known, and whether that is the whole pod's anyway.
func OldAppArmor(annotations map[string]string, spec *v1.PodSpec, f func(c *v1.Container, key string, profile *v1.AppArmorProfile, ofPod bool)) {
	var whole *v1.AppArmorProfile
	if spec.SecurityContext != nil {
		whole = spec.SecurityContext.AppArmorProfile
	}
	for c := range AllContainers(spec) {
		key := v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		annotation, ok := annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			continue
		}
		profile := appArmorOf(annotation)
		f(c, key, profile, whole != nil && apiequality.Semantic.DeepEqual(profile, whole))
	}
}

func appArmorOf(annotation string) *v1.AppArmorProfile {
	switch annotation {
	case v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	}
	if name, ok := strings.CutPrefix(annotation, v1.DeprecatedAppArmorBetaProfileNamePrefix); ok && name != "" {
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
