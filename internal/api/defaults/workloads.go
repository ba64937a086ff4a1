package defaults

import (
	appsv1 "k8s.io/api/apps/v1"
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
