package deployment

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"wherry.dev/internal/api/pods"
)

// hashLabel is on the pods, and in the selector, of each of a Deployment's ReplicaSets.
const hashLabel = appsv1.DefaultDeploymentUniqueLabelKey

// nameOf returns the name of a Deployment's ReplicaSet. A long name of the Deployment is cut.
func nameOf(deployment, hash string) string {
	room := validation.DNS1123SubdomainMaxLength - len("-") - len(hash)
	return deployment[:min(len(deployment), room)] + "-" + hash
}

// sameTemplate reports whether two templates are equal, apart from the hash.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	am, bm := a.ObjectMeta, b.ObjectMeta
	am.Labels, bm.Labels = withoutHash(am.Labels), withoutHash(bm.Labels)
	return equality.Semantic.DeepEqual(am, bm) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

func withoutHash(labels map[string]string) map[string]string {
	if _, ok := labels[hashLabel]; !ok {
		return labels
	}
	labels = maps.Clone(labels)
	delete(labels, hashLabel)
	return labels
}

// newReplicaSet returns a ReplicaSet for the Deployment's template, with neither replicas nor
// annotations yet.
func newReplicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	template := d.Spec.Template.DeepCopy()
	hash := pods.TemplateHash(template, d.Status.CollisionCount)
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[hashLabel] = hash
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: nameOf(d.Name, hash), Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32), MinReadySeconds: d.Spec.MinReadySeconds,
			Selector: metav1.CloneSelectorAndAddLabel(d.Spec.Selector, hashLabel, hash), Template: *template,
		},
	}
}
