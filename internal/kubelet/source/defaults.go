package source

import (
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// setDefaults gives a static pod what the API server gives to others.
func setDefaults(pod *v1.Pod) {
	s := &pod.Spec
	set(&s.RestartPolicy, v1.RestartPolicyAlways)
	set(&s.DNSPolicy, v1.DNSClusterFirst)
	set(&s.SchedulerName, v1.DefaultSchedulerName)
	setPtr(&s.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	setPtr(&s.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	if s.SecurityContext == nil {
		s.SecurityContext = &v1.PodSecurityContext{}
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			defaultContainer(&list[i], s.HostNetwork)
		}
	}
}

func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func setPtr[T any](p **T, v T) {
	if *p == nil {
		*p = new(v)
	}
}

func defaultVolume(v *v1.Volume) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil {
		setPtr(&v.HostPath.Type, v1.HostPathUnset)
	}
	if v.DownwardAPI != nil {
		setPtr(&v.DownwardAPI.DefaultMode, v1.DownwardAPIVolumeSourceDefaultMode)
	}
	if v.Projected != nil {
		setPtr(&v.Projected.DefaultMode, v1.ProjectedVolumeSourceDefaultMode)
	}
}

func defaultContainer(c *v1.Container, hostNetwork bool) {
	set(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	set(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	set(&c.ImagePullPolicy, pullPolicy(c.Image))
	for i := range c.Ports {
		set(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork {
			set(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	// A limit without a request is a request.
	for name, q := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = q.DeepCopy()
		}
	}
	for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p == nil {
			continue
		}
		set(&p.TimeoutSeconds, 1)
		set(&p.PeriodSeconds, 10)
		set(&p.SuccessThreshold, 1)
		set(&p.FailureThreshold, 3)
		if p.HTTPGet != nil {
			set(&p.HTTPGet.Path, "/")
			set(&p.HTTPGet.Scheme, v1.URISchemeHTTP)
		}
	}
}

// pullPolicy of an image that says nothing: Always for :latest, or no tag at all.
func pullPolicy(image string) v1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err == nil && (reference.IsNameOnly(named) || strings.HasSuffix(reference.TagNameOnly(named).String(), ":latest")) {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}
