package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// PodStatus checks a status that replaces old's.
func PodStatus(pod, old *corev1.Pod) field.ErrorList {
	p := &problems{}
	p.podAnnotationUpdate(field.NewPath("metadata", "annotations"), pod, old)
	at := field.NewPath("status")
	p.podConditions(at.Child("conditions"), pod.Status.Conditions)
	if n := pod.Status.NominatedNodeName; n != "" && n != old.Status.NominatedNodeName {
		p.subdomain(at.Child("nominatedNodeName"), n)
		if old.Spec.NodeName != "" {
			p.forbidden(at.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node")
		}
	}
	if pod.Status.ObservedGeneration < 0 {
		p.invalid(at.Child("observedGeneration"), pod.Status.ObservedGeneration, "must be a non-negative integer")
	}
	immutable(p, at.Child("qosClass"), pod.Status.QOSClass, old.Status.QOSClass)
	p.stateTransitions(at.Child("containerStatuses"), pod.Status.ContainerStatuses, old.Status.ContainerStatuses, &old.Spec, old.Spec.Containers)
	p.stateTransitions(at.Child("initContainerStatuses"), pod.Status.InitContainerStatuses, old.Status.InitContainerStatuses, &old.Spec, old.Spec.InitContainers)
	p.stateTransitions(at.Child("ephemeralContainerStatuses"), pod.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, &old.Spec, nil)
	ips := make([]string, len(pod.Status.PodIPs))
	for i, ip := range pod.Status.PodIPs {
		ips[i] = ip.IP
	}
	p.addresses(at.Child("podIPs"), ips)
	ips = make([]string, len(pod.Status.HostIPs))
	for i, ip := range pod.Status.HostIPs {
		ips[i] = ip.IP
	}
	if len(ips) > 0 && ips[0] != pod.Status.HostIP {
		p.invalid(at.Child("hostIPs").Index(0).Child("ip"), ips[0], "must be equal to `hostIP`")
	}
	p.addresses(at.Child("hostIPs"), ips)
	return p.list
}

func (p *problems) podConditions(at path, list []corev1.PodCondition) {
	for i, c := range list {
		if c.ObservedGeneration < 0 {
			p.invalid(at.Index(i).Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer")
		}
		p.qualified(at.Index(i).Child("Type"), string(c.Type))
	}
}

// addresses: valid ones, at most one of each family.
func (p *problems) addresses(at path, ips []string) {
	for i, ip := range ips {
		p.ip(at.Index(i), ip)
	}
	if len(ips) <= 1 {
		return
	}
	dual, err := utilnet.IsDualStackIPStrings(ips)
	if err != nil || !dual || len(ips) > 2 {
		p.invalid(at, ips, "may specify no more than one IP for each IP family")
	}
}

// stateTransitions: a container that has ended stays so, unless its policy restarts it.
// containers is nil for ephemeral containers, which are never restarted.
func (p *problems) stateTransitions(at path, list, old []corev1.ContainerStatus, spec *corev1.PodSpec, containers []corev1.Container) {
	for i, was := range old {
		if was.State.Terminated == nil {
			continue
		}
		revived := slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == was.Name && s.State.Terminated == nil })
		if !revived {
			continue
		}
		c := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == was.Name })
		if c >= 0 && mayRestart(spec, &containers[c], was.State.Terminated.ExitCode) {
			continue
		}
		p.forbidden(at.Index(i).Child("state"), "may not be transitioned to non-terminated state")
	}
}

// mayRestart reports whether a container that ended with the code may run again: by its
// own rules, its own policy, the pod's, or because another's rule restarts all.
func mayRestart(spec *corev1.PodSpec, c *corev1.Container, code int32) bool {
	if restartsAll(spec) {
		return true
	}
	if c.RestartPolicy != nil {
		for _, r := range c.RestartPolicyRules {
			if ruleMatches(&r, code) {
				return r.Action == corev1.ContainerRestartRuleActionRestart
			}
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return true
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		default:
			return false
		}
	}
	switch spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return true
	}
}

func ruleMatches(r *corev1.ContainerRestartRule, code int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	in := slices.Contains(r.ExitCodes.Values, code)
	return in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}

func restartsAll(spec *corev1.PodSpec) bool {
	found := false
	visit(spec, field.NewPath("spec"), func(_ path, c *corev1.Container) {
		for _, r := range c.RestartPolicyRules {
			found = found || r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}
	})
	return found
}
