package gather

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Pods returns a workload, and the pods that it controls now, directly or through others.
func Pods(ctx context.Context, client kubernetes.Interface, t Target) (metav1.Object, []*v1.Pod, error) {
	g := &gatherer{Interface: client, Target: t}
	owner, selector, owners, err := g.workload(ctx)
	if err != nil {
		return nil, nil, err
	}
	pods, err := g.controlled(ctx, selector, owners...)
	return owner, pods, err
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
