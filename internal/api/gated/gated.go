// Package gated clears the fields of features that are off, as upstream's API server does: who sets one gets
// the object without it, and sees that nothing will come of it. An object that already has such a field keeps all of
// that feature, since it may have been written while the feature was on.
//
// Names and defaults of the gates are those of Kubernetes 1.37.
package gated

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
)

// Gates that are off by default, and that can be opened here.
const (
	// GenericWorkload is the gate of workloads and pod groups (scheduling.k8s.io/v1beta1), for API server and scheduler.
	GenericWorkload = "GenericWorkload"
	// TopologyAwareWorkloadScheduling is the gate of pod groups that want nodes of one domain. It takes GenericWorkload.
	TopologyAwareWorkloadScheduling = "TopologyAwareWorkloadScheduling"
	// DRAWorkloadResourceClaims is the gate of pod groups whose pods have claims for devices in common. It takes
	// GenericWorkload. It is the API server's: other components go by what a group says.
	DRAWorkloadResourceClaims = "DRAWorkloadResourceClaims"
	// PodGroupPreemptionPolicy is the gate of pod groups that say whether they preempt others. It takes GenericWorkload.
	// It is the API server's: the scheduler goes by what a group says.
	PodGroupPreemptionPolicy = "PodGroupPreemptionPolicy"
	// CSIVolumeHealth is the gate of what CSI drivers say about the health of volumes, for API server and kubelet.
	CSIVolumeHealth = "CSIVolumeHealth"
)

// Known reports whether a gate is one of these.
func Known(gate string) bool {
	return slices.Contains([]string{
		GenericWorkload, TopologyAwareWorkloadScheduling, DRAWorkloadResourceClaims, PodGroupPreemptionPolicy, CSIVolumeHealth,
	}, gate)
}

// Features says which features are on that are off by default.
type Features struct {
	PodGroups       bool // GenericWorkload
	Topology        bool // TopologyAwareWorkloadScheduling
	GroupClaims     bool // DRAWorkloadResourceClaims
	GroupPreemption bool // PodGroupPreemptionPolicy
	VolumeHealth    bool // CSIVolumeHealth
}

// Check returns an error for a feature that takes another one.
func (f Features) Check() error {
	switch {
	case f.PodGroups:
		return nil
	case f.Topology:
		return fmt.Errorf("the feature gate %s takes %s=true, too", TopologyAwareWorkloadScheduling, GenericWorkload)
	case f.GroupClaims:
		return fmt.Errorf("the feature gate %s takes %s=true, too", DRAWorkloadResourceClaims, GenericWorkload)
	case f.GroupPreemption:
		return fmt.Errorf("the feature gate %s takes %s=true, too", PodGroupPreemptionPolicy, GenericWorkload)
	}
	return nil
}

// Pod clears the fields in the spec of a pod that replaces old, which is nil for a new one.
func (f Features) Pod(pod, old *corev1.Pod) {
	var was *corev1.PodSpec
	if old != nil {
		was = &old.Spec
	}
	f.spec(&pod.Spec, was)
}

// Template clears the fields in a template of pods that replaces old. Either may be nil.
func (f Features) Template(template, old *corev1.PodTemplateSpec) {
	if template == nil {
		return
	}
	var was *corev1.PodSpec
	if old != nil {
		was = &old.Spec
	}
	f.spec(&template.Spec, was)
}

// Job clears the fields of a job that replaces old, which is nil for a new one.
func (f Features) Job(job, old *batchv1.Job) {
	var was *batchv1.JobSpec
	if old != nil {
		was = &old.Spec
	}
	f.job(&job.Spec, was)
}

// CronJob clears the fields of a cron job's jobs. old is nil for a new one.
func (f Features) CronJob(cron, old *batchv1.CronJob) {
	var was *batchv1.JobSpec
	if old != nil {
		was = &old.Spec.JobTemplate.Spec
	}
	f.job(&cron.Spec.JobTemplate.Spec, was)
}

func (f Features) job(s, old *batchv1.JobSpec) {
	if old == nil {
		f.spec(&s.Template.Spec, nil)
	} else {
		f.spec(&s.Template.Spec, &old.Template.Spec)
	}
	if old == nil || old.Scheduling == nil { // WorkloadWithJob
		s.Scheduling = nil
	}
}

// PodStatus clears the fields of a pod's status that replaces old's.
func (f Features) PodStatus(pod, old *corev1.Pod) {
	if !f.VolumeHealth && len(old.Status.VolumeHealth) == 0 {
		pod.Status.VolumeHealth = nil
	}
	if len(old.Status.NodeAllocatableResourceClaimStatuses) == 0 { // DRANodeAllocatableResources
		pod.Status.NodeAllocatableResourceClaimStatuses = nil
	}
}

// Node clears the fields of a node that replaces old, which is nil for a new one.
func (f Features) Node(n, old *corev1.Node) {
	drop(n, old, func(n *corev1.Node) []slot { return []slot{at(&n.Spec.PodPreemptionPolicy)} }) // InPlacePodVerticalScalingSchedulerPreemption
	drop(n, old, func(n *corev1.Node) []slot { return []slot{at(&n.Spec.ConfigSource)} })        // removed in Kubernetes 1.24
	f.NodeStatus(n, old)
}

// NodeStatus clears the fields of a node's status that replaces old's.
func (f Features) NodeStatus(n, old *corev1.Node) {
	drop(n, old, func(n *corev1.Node) []slot { return []slot{at(&n.Status.Config)} }) // removed with the field of the spec
}

// Lease clears the fields of a lease that replaces old, which is nil for a new one.
func (f Features) Lease(l, old *coordinationv1.Lease) {
	drop(l, old, func(l *coordinationv1.Lease) []slot { // CoordinatedLeaderElection
		return []slot{at(&l.Spec.Strategy), at(&l.Spec.PreferredHolder)}
	})
}

// CSINodeStatus clears the fields of what is known of a node's storage, which replaces old's.
func (f Features) CSINodeStatus(n, old *storagev1.CSINode) {
	if !f.VolumeHealth && len(old.Status.StorageHealth) == 0 {
		n.Status.StorageHealth = nil
	}
}

// ClaimStatus clears the fields of a claim's status that replaces old's.
func (f Features) ClaimStatus(claim, old *corev1.PersistentVolumeClaim) {
	if !f.VolumeHealth && old.Status.HealthStatus == nil {
		claim.Status.HealthStatus = nil
	}
}

// Workload clears the fields of a workload that replaces old, which is nil for a new one.
func (f Features) Workload(w, old *schedulingv1beta1.Workload) {
	drop(w, old, func(w *schedulingv1beta1.Workload) []slot { // CompositePodGroup
		return []slot{list[schedulingv1beta1.CompositePodGroupTemplate]{&w.Spec.CompositePodGroupTemplates}}
	})
	if !f.Topology {
		drop(w, old, ofTemplates(func(t *schedulingv1beta1.PodGroupTemplate) slot { return at(&t.SchedulingConstraints) }))
	}
	if !f.GroupClaims {
		drop(w, old, ofTemplates(func(t *schedulingv1beta1.PodGroupTemplate) slot { return groupClaims{&t.ResourceClaims} }))
	}
	if !f.GroupPreemption {
		drop(w, old, ofTemplates(func(t *schedulingv1beta1.PodGroupTemplate) slot { return at(&t.PreemptionPolicy) }))
	}
}

// PodGroup clears the fields of a pod group that replaces old, which is nil for a new one.
func (f Features) PodGroup(g, old *schedulingv1beta1.PodGroup) {
	fields := []func(*schedulingv1beta1.PodGroup) slot{
		func(g *schedulingv1beta1.PodGroup) slot { return at(&g.Spec.ParentCompositePodGroupName) }, // CompositePodGroup
	}
	if !f.Topology {
		fields = append(fields, func(g *schedulingv1beta1.PodGroup) slot { return at(&g.Spec.SchedulingConstraints) })
	}
	if !f.GroupClaims {
		fields = append(fields, func(g *schedulingv1beta1.PodGroup) slot { return groupClaims{&g.Spec.ResourceClaims} })
	}
	if !f.GroupPreemption {
		fields = append(fields, func(g *schedulingv1beta1.PodGroup) slot { return at(&g.Spec.PreemptionPolicy) })
	}
	for _, field := range fields {
		drop(g, old, func(g *schedulingv1beta1.PodGroup) []slot { return []slot{field(g)} })
	}
}

// PodGroupStatus clears the fields in the status of a pod group that replaces old's.
func (f Features) PodGroupStatus(g, old *schedulingv1beta1.PodGroup) {
	if !f.GroupClaims && len(old.Spec.ResourceClaims) == 0 {
		g.Status.ResourceClaimStatuses = nil
	}
}

type groupClaims = list[schedulingv1beta1.PodGroupResourceClaim]

func ofTemplates(field func(*schedulingv1beta1.PodGroupTemplate) slot) func(*schedulingv1beta1.Workload) []slot {
	return func(w *schedulingv1beta1.Workload) []slot {
		out := make([]slot, len(w.Spec.PodGroupTemplates))
		for i := range out {
			out[i] = field(&w.Spec.PodGroupTemplates[i])
		}
		return out
	}
}

func (f Features) spec(s, old *corev1.PodSpec) {
	for _, fields := range off {
		drop(s, old, fields)
	}
	if !f.PodGroups {
		drop(s, old, func(s *corev1.PodSpec) []slot { return []slot{at(&s.SchedulingGroup)} })
	}
}

// drop clears the fields of one feature in obj, unless old has one of them.
func drop[T any](obj, old *T, fields func(*T) []slot) {
	if old != nil && slices.ContainsFunc(fields(old), slot.set) {
		return
	}
	for _, field := range fields(obj) {
		field.clear()
	}
}

// off has the fields that each feature that cannot be switched on here has in the spec of a pod.
var off = []func(*corev1.PodSpec) []slot{
	evictionResponders, directoryModes, fileOwners, mountOptions, httpProtocols, grpcModes,
}

// slot is an optional field.
type slot interface {
	set() bool
	clear()
}

type pointer[T any] struct{ to **T }

func (p pointer[T]) set() bool { return *p.to != nil }
func (p pointer[T]) clear()    { *p.to = nil }

func at[T any](to **T) slot { return pointer[T]{to} }

type list[T any] struct{ to *[]T }

func (l list[T]) set() bool { return len(*l.to) > 0 }
func (l list[T]) clear()    { *l.to = nil }

// evictionResponders are those of EvictionRequestAPI.
func evictionResponders(s *corev1.PodSpec) []slot {
	return []slot{list[corev1.EvictionResponder]{&s.EvictionResponders}}
}

// directoryModes are those of EmptyDirVolumeMode.
func directoryModes(s *corev1.PodSpec) []slot {
	var out []slot
	for i := range s.Volumes {
		if d := s.Volumes[i].EmptyDir; d != nil {
			out = append(out, at(&d.Mode))
		}
	}
	return out
}

// fileOwners are those of AtomicWriteVolumeUserFields.
func fileOwners(s *corev1.PodSpec) []slot {
	var out []slot
	for i := range s.Volumes {
		v := &s.Volumes[i]
		if v.ConfigMap != nil {
			out = append(append(out, at(&v.ConfigMap.DefaultUser)), ofKeys(v.ConfigMap.Items)...)
		}
		if v.Secret != nil {
			out = append(append(out, at(&v.Secret.DefaultUser)), ofKeys(v.Secret.Items)...)
		}
		if v.DownwardAPI != nil {
			out = append(append(out, at(&v.DownwardAPI.DefaultUser)), ofFiles(v.DownwardAPI.Items)...)
		}
		if v.Projected != nil {
			out = append(out, at(&v.Projected.DefaultUser))
			for j := range v.Projected.Sources {
				out = append(out, ofProjection(&v.Projected.Sources[j])...)
			}
		}
	}
	return out
}

func ofProjection(p *corev1.VolumeProjection) []slot {
	var out []slot
	if p.ConfigMap != nil {
		out = append(out, ofKeys(p.ConfigMap.Items)...)
	}
	if p.Secret != nil {
		out = append(out, ofKeys(p.Secret.Items)...)
	}
	if p.DownwardAPI != nil {
		out = append(out, ofFiles(p.DownwardAPI.Items)...)
	}
	if p.ServiceAccountToken != nil {
		out = append(out, at(&p.ServiceAccountToken.User))
	}
	if p.ClusterTrustBundle != nil {
		out = append(out, at(&p.ClusterTrustBundle.User))
	}
	if p.PodCertificate != nil {
		out = append(out, at(&p.PodCertificate.User))
	}
	return out
}

func ofKeys(items []corev1.KeyToPath) []slot {
	out := make([]slot, len(items))
	for i := range items {
		out[i] = at(&items[i].User)
	}
	return out
}

func ofFiles(items []corev1.DownwardAPIVolumeFile) []slot {
	out := make([]slot, len(items))
	for i := range items {
		out[i] = at(&items[i].User)
	}
	return out
}

// mountOptions are those of VolumeBindMountOptions.
func mountOptions(s *corev1.PodSpec) []slot {
	var out []slot
	add := func(mounts []corev1.VolumeMount) {
		for i := range mounts {
			out = append(out, list[string]{&mounts[i].BindMountOptions})
		}
	}
	for i := range s.Containers {
		add(s.Containers[i].VolumeMounts)
	}
	for i := range s.InitContainers {
		add(s.InitContainers[i].VolumeMounts)
	}
	for i := range s.EphemeralContainers {
		add(s.EphemeralContainers[i].VolumeMounts)
	}
	return out
}

// httpProtocols are those of H2CContainerProbe.
func httpProtocols(s *corev1.PodSpec) []slot {
	var out []slot
	for c := range containers(s) {
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if p != nil && p.HTTPGet != nil {
				out = append(out, at(&p.HTTPGet.Protocol))
			}
		}
		if c.Lifecycle == nil {
			continue
		}
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				out = append(out, at(&h.HTTPGet.Protocol))
			}
		}
	}
	return out
}

// grpcModes are those of GRPCContainerProbeTLS.
func grpcModes(s *corev1.PodSpec) []slot {
	var out []slot
	for c := range containers(s) {
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if p != nil && p.GRPC != nil {
				out = append(out, at(&p.GRPC.Mode))
			}
		}
	}
	return out
}

// containers returns those that may have probes and handlers.
func containers(s *corev1.PodSpec) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, all := range [][]corev1.Container{s.Containers, s.InitContainers} {
			for i := range all {
				if !yield(&all[i]) {
					return
				}
			}
		}
	}
}
