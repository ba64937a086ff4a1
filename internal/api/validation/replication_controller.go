package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ReplicationController checks a replication controller. Unlike newer kinds it may change what it
// selects.
func ReplicationController(r *corev1.ReplicationController) field.ErrorList {
	p := &problems{}
	at, spec := field.NewPath("spec"), &r.Spec
	p.counts(at, counted("minReadySeconds", &spec.MinReadySeconds), counted("replicas", spec.Replicas))
	if spec.Replicas == nil {
		p.required(at.Child("replicas"), "")
	}
	if len(spec.Selector) == 0 {
		p.required(at.Child("selector"), "")
	}
	template := at.Child("template")
	if spec.Template == nil {
		p.required(template, "")
		return p.list
	}
	p.matchesTemplate(template, labels.SelectorFromSet(spec.Selector), spec.Template)
	p.podTemplate(template, spec.Template)
	p.runsForEver(template.Child("spec"), &spec.Template.Spec, "ReplicationController")
	return p.list
}

// ReplicationControllerStatus checks the status of a replication controller.
func ReplicationControllerStatus(r *corev1.ReplicationController) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &r.Status
	labeled, ready, available := counted("fullyLabeledReplicas", &s.FullyLabeledReplicas), counted("readyReplicas", &s.ReadyReplicas), counted("availableReplicas", &s.AvailableReplicas)
	p.counts(at, counted("replicas", &s.Replicas), labeled, ready, available, counted("observedGeneration", &s.ObservedGeneration))
	p.atMost(at, s.Replicas, "status.replicas", labeled, ready, available)
	p.atMost(at, s.ReadyReplicas, "readyReplicas", available)
	return p.list
}

// PodTemplate checks a pod template.
func PodTemplate(t *corev1.PodTemplate) field.ErrorList {
	p := &problems{}
	p.podTemplate(field.NewPath("template"), &t.Template)
	return p.list
}
