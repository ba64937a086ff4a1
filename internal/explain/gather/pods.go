package gather

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// Workload is one with the pods that it controls now, directly or through others.
type Workload struct {
	Object   metav1.Object
	Sets     []metav1.Object // the ReplicaSets of a Deployment that have pods
	Services []*v1.Service   // those that select the pods
	Pods     []*v1.Pod
}

// WorkloadOf returns the target with its pods.
func WorkloadOf(ctx context.Context, client kubernetes.Interface, t Target) (w Workload, err error) {
	g := &gatherer{Interface: client, Target: t}
	owner, selector, owners, err := g.workload(ctx)
	if err != nil {
		return w, err
	}
	w.Object = owner
	if w.Pods, err = g.controlled(ctx, selector, owners...); err != nil {
		return w, err
	}
	for _, o := range owners {
		if o != owner && slices.ContainsFunc(w.Pods, func(p *v1.Pod) bool { return metav1.IsControlledBy(p, o) }) {
			w.Sets = append(w.Sets, o)
		}
	}
	list, err := g.CoreV1().Services(g.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, err
	}
	for _, s := range pointers(list.Items) {
		selector := labels.SelectorFromSet(s.Spec.Selector)
		if !selector.Empty() && slices.ContainsFunc(w.Pods, func(p *v1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }) {
			w.Services = append(w.Services, s)
		}
	}
	return w, nil
}

// workload returns an object, the selector of its pods, and which objects control these.
func (g *gatherer) workload(ctx context.Context) (o metav1.Object, s *metav1.LabelSelector, owners []metav1.Object, err error) {
	switch g.Kind {
	case "Deployment":
		d, err := g.AppsV1().Deployments(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, nil, err
		}
		sets, err := g.setsOf(ctx, d)
		return d, d.Spec.Selector, objects(sets), err
	case "ReplicaSet":
		rs, err := g.AppsV1().ReplicaSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
		return rs, rs.Spec.Selector, []metav1.Object{rs}, err
	case "StatefulSet":
		sts, err := g.AppsV1().StatefulSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
		return sts, sts.Spec.Selector, []metav1.Object{sts}, err
	case "DaemonSet":
		ds, err := g.AppsV1().DaemonSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
		return ds, ds.Spec.Selector, []metav1.Object{ds}, err
	case "Job":
		j, err := g.BatchV1().Jobs(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
		return j, j.Spec.Selector, []metav1.Object{j}, err
	}
	return nil, nil, nil, fmt.Errorf("%s/%s has no pods to trace; pod, deploy, rs, sts, ds and job have", g.Kind, g.Name)
}
