package defaults

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// revisions is how many old revisions are kept for a rollback.
const revisions = 10

// ReplicaSet asks for one replica.
func ReplicaSet(r *appsv1.ReplicaSet) {
	setPtr(&r.Spec.Replicas, 1)
	PodSpec(&r.Spec.Template.Spec)
}

// Deployment asks for one replica, replaces a quarter of the pods at a time, and gives up progress
// after ten minutes.
func Deployment(d *appsv1.Deployment) {
	spec := &d.Spec
	setPtr(&spec.Replicas, 1)
	set(&spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		setPtr(&spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		setPtr(&spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		setPtr(&spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	setPtr(&spec.RevisionHistoryLimit, revisions)
	setPtr(&spec.ProgressDeadlineSeconds, 600)
	PodSpec(&spec.Template.Spec)
}

// DaemonSet replaces one pod at a time, after it has ended.
func DaemonSet(d *appsv1.DaemonSet) {
	strategy := &d.Spec.UpdateStrategy
	set(&strategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if strategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setPtr(&strategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setPtr(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setPtr(&strategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setPtr(&d.Spec.RevisionHistoryLimit, revisions)
	PodSpec(&d.Spec.Template.Spec)
}

// StatefulSet asks for one replica, makes and replaces pods one by one, and keeps their claims.
func StatefulSet(s *appsv1.StatefulSet) {
	spec := &s.Spec
	set(&spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	strategy := &spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		setPtr(&strategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && strategy.RollingUpdate != nil {
		setPtr(&strategy.RollingUpdate.Partition, 0)
		setPtr(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	setPtr(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	set(&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	set(&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	setPtr(&spec.Replicas, 1)
	setPtr(&spec.RevisionHistoryLimit, revisions)
	PodSpec(&spec.Template.Spec)
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		PersistentVolumeClaim(claim)
	}
}

// ReplicationController asks for one replica, and selects pods by the labels of the template.
func ReplicationController(r *corev1.ReplicationController) {
	setPtr(&r.Spec.Replicas, 1)
	t := r.Spec.Template
	if t == nil {
		return
	}
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = maps.Clone(t.Labels)
	}
	PodSpec(&t.Spec)
}

// PodTemplate fills in a pod template that is an object of its own.
func PodTemplate(t *corev1.PodTemplate) { PodSpec(&t.Template.Spec) }
