package warnings

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// PodName warns if a new pod's name is not a valid hostname.
func PodName(_ context.Context, p *corev1.Pod) []string {
	return labelWarning(p.Name, "the Pod's hostname")
}

// OwnerName warns if the name of a new workload, with which its pods' names begin, is not a
// valid hostname.
func OwnerName(name string) []string {
	return labelWarning(name, "Pod names and hostnames")
}

func labelWarning(name, use string) []string {
	if msgs := utilvalidation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", use, msgs)}
	}
	return nil
}

// Pod warns of what is in a pod.
func Pod(_ context.Context, p *corev1.Pod) []string {
	return pod(nil, &p.Spec, p.Annotations)
}

// Template warns of the same in what a workload's pods are made from.
func Template(at *field.Path, t *corev1.PodTemplateSpec) []string {
	out := list(pod(at, &t.Spec, t.Annotations))
	pods.OldAppArmor(t.Annotations, &t.Spec, func(_ *corev1.Container, key string, _ *corev1.AppArmorProfile, ofPod bool) {
		if !ofPod {
			out.warn(at.Child("metadata", "annotations").Key(key), OldAppArmor)
		}
	})
	return out
}

// OldAppArmor is said of an annotation that names an AppArmor profile.
const OldAppArmor = `deprecated since v1.30; use the "appArmorProfile" field instead`

// oldAnnotations are those of pods that nobody reads any more.
var oldAnnotations = map[string]string{
	"scheduler.alpha.kubernetes.io/critical-pod":  `non-functional in v1.16+; use the "priorityClassName" field instead`,
	"security.alpha.kubernetes.io/sysctls":        `non-functional in v1.11+; use the "sysctls" field instead`,
	"security.alpha.kubernetes.io/unsafe-sysctls": `non-functional in v1.11+; use the "sysctls" field instead`,
}

const oldSeccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`

func pod(at *field.Path, p *corev1.PodSpec, annotations map[string]string) []string {
	var out list
	spec := at.Child("spec")
	out.placement(spec, p)
	for key, text := range oldAnnotations {
		if _, ok := annotations[key]; ok {
			out.warn(at.Child("metadata", "annotations").Key(key), "%s", text)
		}
	}
	for i := range p.Volumes {
		out.volume(spec.Child("volumes").Index(i), &p.Volumes[i])
		out.paths(&p.Volumes[i])
	}
	out.names(spec, p)
	out.fractions(spec.Child("overhead"), p.Overhead, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	if _, ok := annotations[corev1.SeccompPodAnnotationKey]; ok && (p.SecurityContext == nil || p.SecurityContext.SeccompProfile == nil) {
		out.warn(at.Child("metadata", "annotations").Key(corev1.SeccompPodAnnotationKey), oldSeccomp)
	}
	pods.Visit(p, spec, func(at *field.Path, c *corev1.Container) {
		key := corev1.SeccompContainerAnnotationKeyPrefix + c.Name
		if _, ok := annotations[key]; ok && (c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil) {
			out.warn(field.NewPath("metadata", "annotations").Key(key), oldSeccomp)
		}
		out.container(at, c)
	})
	out.ports(spec, p)
	if s := p.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		out.warn(spec.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	if p.DNSConfig != nil {
		for i, ip := range p.DNSConfig.Nameservers {
			out = append(out, utilvalidation.GetWarningsForIP(spec.Child("dnsConfig", "nameservers").Index(i), ip)...)
		}
	}
	for i, a := range p.HostAliases {
		out = append(out, utilvalidation.GetWarningsForIP(spec.Child("hostAliases").Index(i).Child("ip"), a.IP)...)
	}
	return out
}

const matchesNothing = "a null labelSelector results in matching no pod"

// placement warns of what chooses a pod's node.
func (l *list) placement(spec *field.Path, p *corev1.PodSpec) {
	for key := range p.NodeSelector {
		if text := oldNodeLabels[key]; text != "" {
			l.warn(spec.Child("nodeSelector").Key(key), "%s", text)
		}
	}
	for i, c := range p.TopologySpreadConstraints {
		at := spec.Child("topologySpreadConstraints").Index(i)
		l.nodeLabel(at.Child("topologyKey"), c.TopologyKey)
		if c.LabelSelector == nil {
			l.warn(at.Child("labelSelector"), matchesNothing)
		}
	}
	if p.Affinity == nil {
		return
	}
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	at := spec.Child("affinity")
	if n := p.Affinity.NodeAffinity; n != nil {
		*l = append(*l, NodeSelector(at.Child("nodeAffinity", required), n.RequiredDuringSchedulingIgnoredDuringExecution)...)
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			at := at.Child("nodeAffinity", preferred).Index(i).Child("preference")
			l.nodeTerm(at, &n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
			l.labelValues(at, &n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
	}
	terms := func(at *field.Path, must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm) {
		for i, t := range must {
			if t.LabelSelector == nil {
				l.warn(at.Child(required).Index(i).Child("labelSelector"), matchesNothing)
			}
		}
		for i, t := range should {
			if t.PodAffinityTerm.LabelSelector == nil {
				l.warn(at.Child(preferred).Index(i).Child("podAffinityTerm", "labelSelector"), matchesNothing)
			}
		}
	}
	if a := p.Affinity.PodAffinity; a != nil {
		terms(at.Child("podAffinity"), a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := p.Affinity.PodAntiAffinity; a != nil {
		terms(at.Child("podAntiAffinity"), a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// volume warns of kinds of volumes that no longer work.
func (l *list) volume(at *field.Path, v *corev1.Volume) {
	l.oldVolumes(at, map[string]bool{
		"photonPersistentDisk": v.PhotonPersistentDisk != nil, "gitRepo": v.GitRepo != nil, "scaleIO": v.ScaleIO != nil,
		"flocker": v.Flocker != nil, "storageOS": v.StorageOS != nil, "quobyte": v.Quobyte != nil,
		"glusterfs": v.Glusterfs != nil, "cephfs": v.CephFS != nil, "rbd": v.RBD != nil,
	})
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		*l = append(*l, ClaimSpec(at.Child("ephemeral", "volumeClaimTemplate", "spec"), &v.Ephemeral.VolumeClaimTemplate.Spec)...)
	}
}

// names warns of addresses and secrets that are given twice.
func (l *list) names(spec *field.Path, p *corev1.PodSpec) {
	seen := map[string]bool{}
	for i, a := range p.HostAliases {
		if seen[a.IP] {
			l.warn(spec.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
		}
		seen[a.IP] = true
	}
	clear(seen)
	for i, s := range p.ImagePullSecrets {
		at := spec.Child("imagePullSecrets").Index(i).Child("name")
		if seen[s.Name] {
			l.warn(at, "duplicate name %q", s.Name)
		}
		if s.Name == "" {
			l.warn(at, "invalid empty name %q", s.Name)
		}
		seen[s.Name] = true
	}
}

func (l *list) container(at *field.Path, c *corev1.Container) {
	l.fractions(at.Child("resources", "limits"), c.Resources.Limits, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	l.fractions(at.Child("resources", "requests"), c.Resources.Requests, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	seen := map[string]bool{}
	for i, e := range c.Env {
		ref := "$(" + e.Name + ")"
		if seen[e.Name] && (e.ValueFrom != nil || e.Value == ref || !strings.Contains(e.Value, ref)) {
			l.warn(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", e.Name)
		}
		seen[e.Name] = true
	}
}

// ports warns of ports that collide, in one container or in several.
func (l *list) ports(spec *field.Path, p *corev1.PodSpec) {
	type key struct {
		port     int32
		protocol corev1.Protocol
	}
	type place struct {
		at   *field.Path
		port corev1.ContainerPort
	}
	all, named := map[key][]place{}, map[string]*field.Path{}
	var ofNames list // come last
	pods.Visit(p, spec, func(at *field.Path, c *corev1.Container) {
		for i, port := range c.Ports {
			at := at.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				l.warn(at, "hostIP set without hostPort: %+v", port)
			}
			k := key{port.ContainerPort, port.Protocol}
			for _, other := range all[k] {
				switch {
				case port.HostIP == other.port.HostIP && port.HostPort == other.port.HostPort:
					l.warn(at, "duplicate port definition with %s", other.at)
				case port.HostPort == 0 || other.port.HostPort == 0:
					l.warn(at, "overlapping port definition with %s", other.at)
				case port.HostPort == other.port.HostPort && (port.HostIP == "") != (other.port.HostIP == ""):
					l.warn(at, "dangerously ambiguous port definition with %s", other.at)
				}
			}
			all[k] = append(all[k], place{at, port})
			if port.Name == "" {
				continue
			}
			if first := named[port.Name]; first != nil {
				ofNames.warn(at, "duplicate port name %q with %s, services and probes that select ports by name will use %s", port.Name, first, first)
			} else {
				named[port.Name] = at
			}
		}
	})
	*l = append(*l, ofNames...)
}
