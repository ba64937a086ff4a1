package validation

import (
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// PodCreate checks a new pod.
func PodCreate(pod *corev1.Pod) field.ErrorList {
	p := &problems{}
	p.pod(pod)
	spec := field.NewPath("spec")
	if len(pod.Spec.EphemeralContainers) > 0 {
		p.forbidden(spec.Child("ephemeralContainers"), "cannot be set on create")
	}
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
		p.forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	return p.list
}

// pod checks what must hold on every write of a pod.
func (p *problems) pod(pod *corev1.Pod) {
	p.podAnnotations(field.NewPath("metadata", "annotations"), pod)
	spec := field.NewPath("spec")
	c := &podContext{problems: p, spec: &pod.Spec}
	c.podSpec(spec, pod.Name, pods.IsMirror(pod))
	if pod.Spec.ServiceAccountName == "" {
		c.noTokens(spec.Child("volumes"))
	}
	for i := range pod.Spec.Containers {
		c.imageWithoutSpace(spec.Child("containers").Index(i), &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		c.imageWithoutSpace(spec.Child("initContainers").Index(i), &pod.Spec.InitContainers[i])
	}
}

// noTokens reports projected tokens in a pod without a service account, which has no tokens.
func (c *podContext) noTokens(at path) {
	for i := range c.spec.Volumes {
		pr := c.spec.Volumes[i].Projected
		if pr == nil {
			continue
		}
		for j := range pr.Sources {
			if pr.Sources[j].ServiceAccountToken != nil {
				c.forbidden(at.Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken"), "must not be specified when serviceAccountName is not set")
			}
		}
	}
}

func (p *problems) podAnnotations(at path, pod *corev1.Pod) {
	if value, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok && pod.Spec.NodeName == "" {
		p.invalid(at.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if cost, ok := pod.Annotations[corev1.PodDeletionCost]; ok {
		n, err := strconv.ParseInt(cost, 10, 32)
		if err != nil || strings.HasPrefix(cost, "+") || (strings.HasPrefix(cost, "0") && n != 0) {
			p.invalid(at.Key(corev1.PodDeletionCost), cost, "must be a 32bit integer")
		}
	}
}

// podSpec checks the spec, part by part.
func (c *podContext) podSpec(at path, podName string, mirror bool) {
	spec := c.spec
	if spec.TerminationGracePeriodSeconds == nil {
		c.required(at.Child("terminationGracePeriodSeconds"), "")
	}
	c.volumeSet(at.Child("volumes"), podName)
	c.claims = c.podClaims(at.Child("resourceClaims"), spec.ResourceClaims, mirror)
	c.containers(at.Child("containers"))
	c.initContainers(at.Child("initContainers"))
	c.ephemeralContainers(at.Child("ephemeralContainers"))
	c.podResources(at.Child("resources"), spec, c.claims)
	oneOfRequired(c.problems, at.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	c.host(at)
	c.dns(at)
	if c.spec.ShareProcessNamespace != nil && *c.spec.ShareProcessNamespace && c.spec.HostPID {
		c.invalid(at.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	c.podSecurity(at.Child("securityContext"))
	c.hostProcesses(at)
	c.names(at)
	c.addAll(metavalidation.ValidateLabels(spec.NodeSelector, at.Child("nodeSelector")))
	c.affinity(at.Child("affinity"), spec.Affinity)
	c.tolerations(at.Child("tolerations"), spec.Tolerations)
	c.topologySpread(at.Child("topologySpreadConstraints"), spec.TopologySpreadConstraints)
	c.gates(at)
	if spec.SchedulingGroup != nil {
		c.schedulingGroup(at.Child("schedulingGroup", "podGroupName"), spec.SchedulingGroup.PodGroupName)
	}
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		c.invalid(at.Child("activeDeadlineSeconds"), *d, "%s", utilvalidation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.PreemptionPolicy != nil {
		oneOfRequired(c.problems, at.Child("preemptionPolicy"), *spec.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if spec.Overhead != nil {
		c.requirements(at.Child("overhead"), &corev1.ResourceRequirements{Limits: spec.Overhead}, nil, c.containerResourceName)
	}
	c.os(at)
}

// names checks the names of other objects, and the pod's own host name.
func (c *podContext) names(at path) {
	spec := c.spec
	check := func(name, value string, ok apivalidation.ValidateNameFunc) {
		if value != "" {
			matches(c.problems, at.Child(name), value, ok(value, false))
		}
	}
	check("serviceAccountName", spec.ServiceAccountName, apivalidation.ValidateServiceAccountName)
	check("nodeName", spec.NodeName, apivalidation.NameIsDNSSubdomain)
	check("priorityClassName", spec.PriorityClassName, apivalidation.NameIsDNSSubdomain)
	check("hostname", spec.Hostname, apivalidation.NameIsDNSLabel)
	check("subdomain", spec.Subdomain, apivalidation.NameIsDNSLabel)
	if n := spec.RuntimeClassName; n != nil {
		matches(c.problems, at.Child("runtimeClassName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))
	}
	if n := spec.HostnameOverride; n != nil {
		at := at.Child("hostnameOverride")
		if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
			c.forbidden(at, "may not be specified when setHostnameAsFQDN is true")
		}
		if spec.HostNetwork {
			c.forbidden(at, "may not be specified when hostNetwork is true")
		}
		const maxHostname = 64
		if len(*n) > maxHostname {
			c.add(field.TooLong(at, "", maxHostname))
		}
		c.subdomain(at, *n)
	}
	for i, a := range spec.HostAliases {
		at := at.Child("hostAliases").Index(i)
		c.ip(at.Child("ip"), a.IP)
		for j, name := range a.Hostnames {
			c.subdomain(at.Child("hostnames").Index(j), name)
		}
	}
}

// host checks what follows from sharing the host's namespaces, or not sharing them.
func (c *podContext) host(at path) {
	spec := c.spec
	if spec.HostNetwork {
		for i := range spec.Containers {
			for j, port := range spec.Containers[i].Ports {
				if port.HostPort != port.ContainerPort {
					c.invalid(at.Child("containers").Index(i).Child("ports").Index(j).Child("hostPort"), port.HostPort, "must match `containerPort` when `hostNetwork` is true")
				}
			}
		}
	}
	if c.hostUsers() {
		return
	}
	for _, f := range []setField{{"hostNetwork", spec.HostNetwork}, {"HostPID", spec.HostPID}, {"HostIPC", spec.HostIPC}} {
		if f.set {
			c.forbidden(at.Child(f.name), "when `hostUsers` is false")
		}
	}
	pods.Visit(spec, at, func(at path, ctr *corev1.Container) {
		if len(ctr.VolumeDevices) > 0 {
			c.forbidden(at.Child("volumeDevices"), "when `hostUsers` is false")
		}
	})
}

const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func (c *podContext) dns(spec path) {
	policy, cfg := c.spec.DNSPolicy, c.spec.DNSConfig
	oneOfRequired(c.problems, spec.Child("dnsPolicy"), policy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	at := spec.Child("dnsConfig")
	if policy == corev1.DNSNone && cfg == nil {
		c.required(at, "must provide `dnsConfig` when `dnsPolicy` is None")
	}
	if cfg == nil {
		return
	}
	if policy == corev1.DNSNone && len(cfg.Nameservers) == 0 {
		c.required(at.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")
	}
	if len(cfg.Nameservers) > maxNameservers {
		c.invalid(at.Child("nameservers"), cfg.Nameservers, "must not have more than %v nameservers", maxNameservers)
	}
	for i, ns := range cfg.Nameservers {
		c.ip(at.Child("nameservers").Index(i), ns)
	}
	if len(cfg.Searches) > maxSearches {
		c.invalid(at.Child("searches"), cfg.Searches, "must not have more than %v search paths", maxSearches)
	}
	if len(strings.Join(cfg.Searches, " ")) > maxSearchChars {
		c.invalid(at.Child("searches"), cfg.Searches, "must not have more than %v characters (including spaces) in the search list", maxSearchChars)
	}
	for i, s := range cfg.Searches {
		if s != "." {
			s = strings.TrimSuffix(s, ".")
			matches(c.problems, at.Child("searches").Index(i), s, utilvalidation.IsDNS1123SubdomainWithUnderscore(s))
		}
	}
	for i, o := range cfg.Options {
		if o.Name == "" {
			c.required(at.Child("options").Index(i), "must not be empty")
		}
	}
}

func (c *podContext) schedulingGroup(at path, name *string) {
	if name == nil {
		c.invalid(at, name, "must specify one of: `podGroupName`")
		return
	}
	c.subdomain(at, *name)
}

func (c *podContext) gates(at path) {
	for i, g := range c.spec.ReadinessGates {
		c.qualified(at.Child("readinessGates").Index(i).Child("conditionType"), string(g.ConditionType))
	}
	seen := map[string]bool{}
	for i, g := range c.spec.SchedulingGates {
		at := at.Child("schedulingGates").Index(i)
		c.qualified(at, g.Name)
		if seen[g.Name] {
			c.add(field.Duplicate(at, g.Name))
		}
		seen[g.Name] = true
	}
}
