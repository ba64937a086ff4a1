package main

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Sets of pods, by which pods without constraints of their own are spread. Nobody runs them: the pods are made up.
const kindsOfSets = "ReplicaSet ReplicationController StatefulSet"

// sets returns the sets of a namespace, each of a kind and for an application.
func (d dice) sets(ns string) []object {
	var out []object
	for kind := range strings.FieldsSeq(kindsOfSets) {
		for app := range strings.FieldsSeq(apps) {
			if !d.chance(4) { // else its pods have an owner that is gone
				out = append(out, d.set(kind, ns, app))
			}
		}
	}
	return out
}

func (d dice) set(kind, ns, app string) object {
	meta := metav1.ObjectMeta{Namespace: ns, Name: setOf(kind, app)}
	chosen := map[string]string{labelApp: app}
	if d.chance(3) {
		chosen[labelTier] = d.word(tiers)
	}
	selector := &metav1.LabelSelector{MatchLabels: chosen}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelApp: app, labelTier: "front", labelHash: "1"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: d.word(podImages)}}},
	}
	if tier := chosen[labelTier]; tier != "" {
		template.Labels[labelTier] = tier
	}
	if d.chance(3) {
		selector.MatchExpressions = []metav1.LabelSelectorRequirement{
			{Key: labelHash, Operator: metav1.LabelSelectorOpIn, Values: []string{"1", d.word("1 2")}},
		}
	}
	switch kind {
	case "ReplicaSet":
		return &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
	case "StatefulSet":
		return &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Selector: selector, Template: template, ServiceName: app,
		}}
	}
	return &v1.ReplicationController{ObjectMeta: meta, Spec: v1.ReplicationControllerSpec{
		Selector: chosen, Template: &template,
	}}
}

func setOf(kind, app string) string { return strings.ToLower(kind) + "-" + app }

// owned makes a pod one of a set, of its own application or, as labels change, of another one.
func (d dice) owned(p *v1.Pod) {
	kind, app := d.word(kindsOfSets), p.Labels[labelApp]
	if d.chance(5) {
		app = d.word(apps)
	}
	ref := metav1.OwnerReference{
		APIVersion: "apps/v1", Kind: kind, Name: setOf(kind, app), UID: "made-up", Controller: new(!d.chance(8)),
	}
	if kind == "ReplicationController" {
		ref.APIVersion = "v1"
	}
	p.OwnerReferences = []metav1.OwnerReference{ref}
}
