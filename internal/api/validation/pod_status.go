package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/api/pods"
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
	p.stateTransitions(at.Child("containerStatuses"), pod.Status.ContainerStatuses, old.Status.ContainerStatuses, old, old.Spec.Containers)
	p.stateTransitions(at.Child("initContainerStatuses"), pod.Status.InitContainerStatuses, old.Status.InitContainerStatuses, old, old.Spec.InitContainers)
	p.stateTransitions(at.Child("ephemeralContainerStatuses"), pod.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, old, nil)
	p.claimStatuses(at.Child("resourceClaimStatuses"), pod)
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		p.extendedClaimStatus(at.Child("extendedResourceClaimStatus"), s, &old.Spec)
	}
	p.allocatedStatus(at.Child("containerStatuses"), pod.Status.ContainerStatuses, pod.Spec.Containers, &pod.Status)
	p.allocatedStatus(at.Child("initContainerStatuses"), pod.Status.InitContainerStatuses, pod.Spec.InitContainers, &pod.Status)
	for i, s := range pod.Status.EphemeralContainerStatuses {
		if len(s.AllocatedResourcesStatus) > 0 {
			p.forbidden(at.Child("ephemeralContainerStatuses").Index(i).Child("allocatedResourcesStatus"), "must not be specified in container status")
		}
	}
	p.volumesHealth(at.Child("volumeHealth"), pod.Status.VolumeHealth)
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

// allocatedStatus checks what is said of the health of the devices of containers (KEP-4680).
func (p *problems) allocatedStatus(at path, statuses []corev1.ContainerStatus, containers []corev1.Container, pod *corev1.PodStatus) {
	for i, s := range statuses {
		which := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name })
		for j, r := range s.AllocatedResourcesStatus {
			at := at.Index(i).Child("allocatedResourcesStatus").Index(j)
			if which >= 0 {
				p.allocatedName(at.Child("name"), r.Name, &containers[which], pod)
			}
			seen := map[corev1.ResourceID]bool{}
			for k, h := range r.Resources {
				at := at.Child("resources").Index(k)
				oneOf(p, at.Child("health"), h.Health,
					corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)
				if m := h.Message; m != nil && *m == "" {
					p.required(at.Child("message"), "must be non-empty if specified")
				} else if m != nil && len(*m) > corev1.ResourceHealthMessageMaxLength {
					p.add(field.TooLong(at.Child("message"), *m, corev1.ResourceHealthMessageMaxLength))
				}
				if seen[h.ResourceID] {
					p.add(field.Duplicate(at.Child("resourceID"), h.ResourceID))
				}
				seen[h.ResourceID] = true
			}
		}
	}
}

// allocatedName checks that a container has asked for the resource: by name, by a claim, or by a claim that the scheduler
// made for an extended resource.
func (p *problems) allocatedName(at path, name corev1.ResourceName, c *corev1.Container, pod *corev1.PodStatus) {
	ref, isClaim := strings.CutPrefix(string(name), "claim:")
	if !isClaim {
		if _, ok := c.Resources.Requests[name]; !ok {
			p.invalid(at, name, "must match one of the container's resource requests")
		}
		return
	}
	for _, claim := range c.Resources.Claims {
		if ref == claim.Name && claim.Request == "" || ref == claim.Name+"/"+claim.Request {
			return
		}
	}
	claim, request, _ := strings.Cut(ref, "/")
	if e := pod.ExtendedResourceClaimStatus; e != nil && request != "" && e.ResourceClaimName == claim {
		for _, m := range e.RequestMappings {
			if q, ok := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; m.ContainerName == c.Name && m.RequestName == request && ok && !q.IsZero() {
				return
			}
		}
	}
	p.invalid(at, name, "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty")
}

// claimStatuses checks the names of the claims that were made for a pod.
func (p *problems) claimStatuses(at path, pod *corev1.Pod) {
	seen := map[string]bool{}
	for i, s := range pod.Status.ResourceClaimStatuses {
		at := at.Index(i)
		if !slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == s.Name }) {
			p.invalid(at.Child("name"), s.Name, "must match the name of an entry in `spec.resourceClaims`")
		}
		if seen[s.Name] {
			p.add(field.Duplicate(at.Child("name"), s.Name))
		}
		seen[s.Name] = true
		if s.ResourceClaimName != nil {
			p.subdomain(at.Child("resourceClaimName"), *s.ResourceClaimName)
		}
	}
}

// extendedClaimStatus checks which requests of a claim are the extended resources of a pod's containers (KEP-5004).
func (p *problems) extendedClaimStatus(at path, s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec) {
	list := at.Child("requestMappings")
	if len(s.RequestMappings) == 0 {
		p.required(list, "at least one request mapping is required")
	}
	seen := map[corev1.ContainerExtendedResourceRequest]bool{}
	for i, m := range s.RequestMappings {
		item := list.Index(i)
		c := containerNamed(spec, m.ContainerName)
		if c == nil {
			p.invalid(item.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name")
		} else if _, ok := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !ok {
			p.invalid(item.Child("resourceName"), m.ResourceName, "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests")
		}
		p.label(at.Child("requestName"), m.RequestName)
		if seen[m] {
			p.add(field.Duplicate(item.Child("containerName"), m.ContainerName))
			p.add(field.Duplicate(item.Child("resourceName"), m.ResourceName))
			p.add(field.Duplicate(item.Child("requestName"), m.RequestName))
		}
		seen[m] = true
	}
	if s.ResourceClaimName == "" {
		p.required(at.Child("resourceClaimName"), "")
	} else {
		p.subdomain(at.Child("resourceClaimName"), s.ResourceClaimName)
	}
}

// containerNamed returns a container, or init container, or nil.
func containerNamed(spec *corev1.PodSpec, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

func (p *problems) podConditions(at path, list []corev1.PodCondition) {
	for i, c := range list {
		if c.ObservedGeneration < 0 {
			p.invalid(at.Index(i).Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer")
		}
		p.qualified(at.Index(i).Child("Type"), string(c.Type))
	}
}

// addresses checks that addresses are valid, with at most one of each family.
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

// stateTransitions checks that a container that has ended stays so, unless its policy restarts it.
// containers is nil for ephemeral containers, which are never restarted.
func (p *problems) stateTransitions(at path, list, old []corev1.ContainerStatus, pod *corev1.Pod, containers []corev1.Container) {
	for i, was := range old {
		if was.State.Terminated == nil {
			continue
		}
		revived := slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == was.Name && s.State.Terminated == nil })
		if !revived {
			continue
		}
		c := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == was.Name })
		if c >= 0 && pods.MayRunAgain(pod, &containers[c], was.State.Terminated.ExitCode) {
			continue
		}
		p.forbidden(at.Index(i).Child("state"), "may not be transitioned to non-terminated state")
	}
}
