package gather

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/explain"
)

func (g *gatherer) deployment(ctx context.Context) (x explain.Explanation, err error) {
	d, err := g.AppsV1().Deployments(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.DeploymentFacts{Deployment: d}
	list, err := g.AppsV1().ReplicaSets(g.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
	if err != nil {
		return x, err
	}
	var owners []metav1.Object
	for _, rs := range pointers(list.Items) {
		if metav1.IsControlledBy(rs, d) {
			f.Sets, owners = append(f.Sets, rs), append(owners, rs)
		}
	}
	if f.Crowd, err = g.crowd(ctx, d.Spec.Selector, owners...); err != nil {
		return x, err
	}
	f.About = g.on(ctx, d.UID)
	return explain.Deployment(f), nil
}

func (g *gatherer) replicaSet(ctx context.Context) (x explain.Explanation, err error) {
	rs, err := g.AppsV1().ReplicaSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.ReplicaSetFacts{Set: rs}
	if f.Crowd, err = g.crowd(ctx, rs.Spec.Selector, rs); err != nil {
		return x, err
	}
	f.About = g.on(ctx, rs.UID)
	return explain.ReplicaSet(f), nil
}
