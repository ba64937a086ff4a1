package gather

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/explain"
)

func (g *gatherer) deployment(ctx context.Context) (x explain.Explanation, err error) {
	d, err := g.AppsV1().Deployments(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.DeploymentFacts{Deployment: d}
	if f.Sets, err = g.setsOf(ctx, d); err != nil {
		return x, err
	}
	if f.Crowd, err = g.crowd(ctx, d.Spec.Selector, objects(f.Sets)...); err != nil {
		return x, err
	}
	f.About = g.on(ctx, d.UID)
	return explain.Deployment(f), nil
}

// setsOf returns the ReplicaSets that a Deployment controls.
func (g *gatherer) setsOf(ctx context.Context, d *appsv1.Deployment) (out []*appsv1.ReplicaSet, err error) {
	list, err := g.AppsV1().ReplicaSets(g.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
	if err != nil {
		return nil, err
	}
	for _, rs := range pointers(list.Items) {
		if metav1.IsControlledBy(rs, d) {
			out = append(out, rs)
		}
	}
	return out, nil
}

func objects(sets []*appsv1.ReplicaSet) (out []metav1.Object) {
	for _, rs := range sets {
		out = append(out, rs)
	}
	return out
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

func (g *gatherer) statefulSet(ctx context.Context) (x explain.Explanation, err error) {
	s, err := g.AppsV1().StatefulSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.StatefulSetFacts{Set: s}
	if f.Crowd, err = g.crowd(ctx, s.Spec.Selector, s); err != nil {
		return x, err
	}
	f.About = g.on(ctx, s.UID)
	return explain.StatefulSet(f), nil
}

func (g *gatherer) daemonSet(ctx context.Context) (x explain.Explanation, err error) {
	ds, err := g.AppsV1().DaemonSets(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.DaemonSetFacts{Set: ds}
	if f.Crowd, err = g.crowd(ctx, ds.Spec.Selector, ds); err != nil {
		return x, err
	}
	nodes, err := g.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if f.NodesUnread = g.unread("nodes", err); !f.NodesUnread {
		f.Nodes = pointers(nodes.Items)
	}
	f.About = g.on(ctx, ds.UID)
	return explain.DaemonSet(f), nil
}

func (g *gatherer) job(ctx context.Context) (x explain.Explanation, err error) {
	j, err := g.BatchV1().Jobs(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.JobFacts{Job: j}
	if f.Crowd, err = g.crowd(ctx, j.Spec.Selector, j); err != nil {
		return x, err
	}
	f.About = g.on(ctx, j.UID)
	return explain.Job(f), nil
}

func (g *gatherer) cronJob(ctx context.Context) (x explain.Explanation, err error) {
	c, err := g.BatchV1().CronJobs(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.CronJobFacts{CronJob: c}
	list, err := g.BatchV1().Jobs(g.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return x, err
	}
	for _, j := range pointers(list.Items) {
		if metav1.IsControlledBy(j, c) {
			f.Jobs = append(f.Jobs, j)
		}
	}
	f.About = g.on(ctx, c.UID)
	return explain.CronJob(f), nil
}

func (g *gatherer) autoscaler(ctx context.Context) (x explain.Explanation, err error) {
	h, err := g.AutoscalingV2().HorizontalPodAutoscalers(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	return explain.Autoscaler(explain.AutoscalerFacts{About: g.on(ctx, h.UID), Autoscaler: h}), nil
}
