package defaults

import (
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/api/pods"
)

// Pod fills in a pod.
func Pod(p *corev1.Pod) {
	spec := &p.Spec
	for i := range spec.Containers {
		requestsFromLimits(&spec.Containers[i].Resources)
	}
	for i := range spec.InitContainers {
		requestsFromLimits(&spec.InitContainers[i].Resources)
	}
	setPtr(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if spec.HostNetwork {
		hostPorts(spec.Containers)
		hostPorts(spec.InitContainers)
	}
	PodSpec(spec)
	podIPs(&p.Status)
	if *spec.TerminationGracePeriodSeconds < 0 { // not in PodSpec: a pod template keeps its value
		*spec.TerminationGracePeriodSeconds = 1
	}
}

// podIPs keeps podIP and podIPs in step. Old kubelets know only the one address, which wins if they differ.
func podIPs(s *corev1.PodStatus) {
	if s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP) {
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// PodSpec fills in the fields that are also filled in in a pod template.
func PodSpec(spec *corev1.PodSpec) {
	// The deprecated field is an alias. If both are set, the other one wins.
	set(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	set(&spec.DNSPolicy, corev1.DNSClusterFirst)
	set(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setPtr(&spec.SecurityContext, corev1.PodSecurityContext{})
	setPtr(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	set(&spec.SchedulerName, corev1.DefaultSchedulerName)
	for i := range spec.Volumes {
		volume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		container(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		container(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		container((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

// requestsFromLimits requests as much as the limit where no request is set.
func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits != nil {
		fill(&r.Requests, r.Limits)
	}
}

// PodResources derives what is missing of the resources of a pod as a whole from those of its containers (KEP-2837). It
// is for new pods, when all who may add containers have done so.
func PodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || (len(r.Limits) == 0 && len(r.Requests) == 0) {
		return
	}
	opts := resourcehelper.PodResourcesOptions{}
	limits := resourcehelper.AggregateContainerLimits(p, opts)
	for name, q := range limits {
		if !hugePages(name) || !resourcehelper.IsSupportedPodLevelResource(name) {
			continue
		}
		if _, requested := r.Requests[name]; !requested {
			fill(&r.Limits, corev1.ResourceList{name: q})
		}
	}
	for name, q := range resourcehelper.AggregateContainerRequests(p, opts) {
		if resourcehelper.IsSupportedPodLevelResource(name) && !hugePages(name) {
			fill(&r.Requests, corev1.ResourceList{name: q})
		}
	}
	for name, q := range r.Limits {
		if resourcehelper.IsSupportedPodLevelResource(name) {
			fill(&r.Requests, corev1.ResourceList{name: q})
		}
	}
	for name, q := range r.Requests {
		limit, limited := limits[name]
		if !limited || !resourcehelper.IsSupportedPodLevelResource(name) || !allLimit(p, name) {
			continue
		}
		if q.Cmp(limit) > 0 {
			limit = q // else the pod would not be valid
		}
		fill(&r.Limits, corev1.ResourceList{name: limit})
	}
}

// allLimit reports whether each container limits a resource.
func allLimit(p *corev1.Pod, name corev1.ResourceName) bool {
	for c := range pods.AllContainers(&p.Spec) {
		if _, ok := c.Resources.Limits[name]; !ok {
			return false
		}
	}
	return true
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// hostPorts sets each host port to the container's port, because in the host's network they are the
// same.
func hostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			p := &containers[i].Ports[j]
			set(&p.HostPort, p.ContainerPort)
		}
	}
}

func container(c *corev1.Container) {
	set(&c.ImagePullPolicy, pullPolicy(c.Image))
	set(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	set(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		set(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		fieldRef(from.FieldRef)
		if from.FileKeyRef != nil {
			setPtr(&from.FileKeyRef.Optional, false)
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		probe(p)
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				httpGet(h.HTTPGet)
			}
		}
	}
}

// pullPolicy returns the policy for an image: a tag that moves is pulled every time.
func pullPolicy(image string) corev1.PullPolicy {
	if imageTag(image) == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// imageTag returns a reference's tag. It is "latest" if the reference has neither tag nor digest,
// and "" if it has only a digest or is invalid.
func imageTag(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	if tagged, ok := named.(reference.Tagged); ok {
		return tagged.Tag()
	}
	if _, ok := named.(reference.Digested); ok {
		return ""
	}
	return "latest"
}

func probe(p *corev1.Probe) {
	if p == nil {
		return
	}
	set(&p.TimeoutSeconds, 1)
	set(&p.PeriodSeconds, 10)
	set(&p.SuccessThreshold, 1)
	set(&p.FailureThreshold, 3)
	httpGet(p.HTTPGet)
	if p.GRPC != nil {
		setPtr(&p.GRPC.Service, "")
	}
}

func httpGet(a *corev1.HTTPGetAction) {
	if a == nil {
		return
	}
	set(&a.Path, "/")
	set(&a.Scheme, corev1.URISchemeHTTP)
}

func fieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		set(&f.APIVersion, "v1")
	}
}
