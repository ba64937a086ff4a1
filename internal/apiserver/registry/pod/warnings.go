package pod

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NameWarnings warns if a new pod's name is not a valid hostname.
func NameWarnings(_ context.Context, p *corev1.Pod) []string {
	return labelWarning(p.Name, "the Pod's hostname")
}

// OwnerNameWarnings warns if the name of a new workload, with which its pods' names begin, is not a
// valid hostname.
func OwnerNameWarnings(name string) []string {
	return labelWarning(name, "Pod names and hostnames")
}

func labelWarning(name, use string) []string {
	if msgs := utilvalidation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", use, msgs)}
	}
	return nil
}

// Warnings warns of what is allowed in a pod but hardly intended.
func Warnings(_ context.Context, p *corev1.Pod) []string {
	return specWarnings(field.NewPath("spec"), &p.Spec)
}

// TemplateWarnings warns of the same in what a workload's pods are made from.
func TemplateWarnings(at *field.Path, t *corev1.PodTemplateSpec) []string {
	return specWarnings(at.Child("spec"), &t.Spec)
}

func specWarnings(spec *field.Path, p *corev1.PodSpec) []string {
	var out []string
	warn := func(at *field.Path, format string, args ...any) {
		out = append(out, at.String()+": "+fmt.Sprintf(format, args...))
	}
	for i, c := range p.TopologySpreadConstraints {
		if c.LabelSelector == nil {
			warn(spec.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), "a null labelSelector results in matching no pod")
		}
	}
	seen := map[string]bool{}
	for i, a := range p.HostAliases {
		if seen[a.IP] {
			warn(spec.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
		}
		seen[a.IP] = true
	}
	clear(seen)
	for i, s := range p.ImagePullSecrets {
		at := spec.Child("imagePullSecrets").Index(i).Child("name")
		if seen[s.Name] {
			warn(at, "duplicate name %q", s.Name)
		}
		if s.Name == "" {
			warn(at, "invalid empty name %q", s.Name)
		}
		seen[s.Name] = true
	}
	warnFractions(warn, spec.Child("overhead"), p.Overhead)
	for i := range p.InitContainers {
		warnContainer(warn, spec.Child("initContainers").Index(i), &p.InitContainers[i])
	}
	for i := range p.Containers {
		warnContainer(warn, spec.Child("containers").Index(i), &p.Containers[i])
	}
	return out
}

type warnFunc func(at *field.Path, format string, args ...any)

func warnContainer(warn warnFunc, at *field.Path, c *corev1.Container) {
	warnFractions(warn, at.Child("resources", "limits"), c.Resources.Limits)
	warnFractions(warn, at.Child("resources", "requests"), c.Resources.Requests)
	seen := map[string]bool{}
	for i, e := range c.Env {
		ref := "$(" + e.Name + ")"
		if seen[e.Name] && (e.ValueFrom != nil || e.Value == ref || !strings.Contains(e.Value, ref)) {
			warn(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", e.Name)
		}
		seen[e.Name] = true
	}
	type key struct {
		port     int32
		protocol corev1.Protocol
	}
	ports := map[key]int{}
	for i, p := range c.Ports {
		if first, ok := ports[key{p.ContainerPort, p.Protocol}]; ok && p.HostIP == c.Ports[first].HostIP && p.HostPort == c.Ports[first].HostPort {
			warn(at.Child("ports").Index(i), "duplicate port definition with %s", at.Child("ports").Index(first))
			continue
		}
		ports[key{p.ContainerPort, p.Protocol}] = i
	}
}

// warnFractions warns of fractions of a byte.
func warnFractions(warn warnFunc, at *field.Path, list corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			warn(at.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}
