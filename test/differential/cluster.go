package main

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// object is anything in a cluster.
type object interface {
	runtime.Object
	metav1.Object
}

// cluster returns the objects of a random cluster: mostly a small one, sometimes one with as many nodes as our
// scheduler needs to remember what plugins say.
func (d dice) cluster() []object {
	n := 1 + d.IntN(12)
	if d.chance(3) {
		n = 30 + d.IntN(15)
	}
	var out []object
	for i := range n {
		out = append(out, d.node(i))
	}
	for ns := range strings.FieldsSeq(namespaces) {
		for _, app := range some(d, 3, strings.Fields(apps)...) {
			out = append(out, service(ns, app))
		}
		out = append(out, d.sets(ns)...)
		for _, app := range some(d, 3, strings.Fields(apps)...) {
			out = append(out, budget(ns, app, int32(d.IntN(3))))
		}
	}
	out = append(out, d.storage(n)...)
	out = append(out, d.devices(n)...)
	taken := map[string]bool{} // the claims that one pod only may use, by namespace
	for i := range d.IntN(4 * n) {
		p := d.running(fmt.Sprint("running-", i), fmt.Sprint("n-", d.IntN(n)), i)
		p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v v1.Volume) bool {
			again := v.Name == "solo" && taken[p.Namespace]
			taken[p.Namespace] = taken[p.Namespace] || v.Name == "solo"
			return again
		})
		out = append(out, p)
	}
	return out
}

// service makes the scheduler spread the pods of an application by default.
func service(ns, app string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: app},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{labelApp: app}, Ports: []v1.ServicePort{{Port: 80}}, ClusterIP: v1.ClusterIPNone,
		},
	}
}

func budget(ns, app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{labelApp: app}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

// incoming returns the pods that are asked about, of which several in a row are often of one shape.
func (d dice) incoming(n int) []*v1.Pod {
	var out []*v1.Pod
	for len(out) < n {
		p := d.pod("")
		for range 1 + d.IntN(4) {
			p = p.DeepCopy()
			p.Name = fmt.Sprint("asked-", len(out))
			out = append(out, p)
		}
	}
	return slices.Clip(out[:n])
}
