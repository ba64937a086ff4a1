package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/bench/servers"
)

const (
	namespace, app = "default", "web"
	failing        = "wherry.dev/hollow-fail"
	// look is how often the state is looked at: often enough for figures in seconds.
	look = 500 * time.Millisecond
	// clients is how many requests of ours run at a time.
	clients = 16
)

var labels = map[string]string{"app": app}

// phase is one thing that happens to the cluster.
type phase struct {
	name string
	do   func(context.Context) error
}

func (c *cluster) phases() []phase {
	return []phase{
		{fmt.Sprintf("%d nodes get ready", c.nodes), c.getReady},
		{"at rest, without pods", c.resting},
		{fmt.Sprintf("%d pods become available", c.pods), c.deploy},
		{"at rest", c.resting},
		{"rolling update", c.roll},
		{fmt.Sprintf("%d nodes fail, their pods are replaced", c.failed), c.fail},
		{"they get well", c.getWell},
		{fmt.Sprintf("%d nodes are drained", c.drain), c.drainNodes},
		{"at rest, afterwards", c.resting},
	}
}

func (c *cluster) getReady(phase context.Context) error {
	ctx := context.WithoutCancel(phase) // they outlive the phase
	if err := c.startPart(ctx, "hollow", "hollow", "--nodes", strconv.Itoa(c.nodes), "--heartbeat", c.heartbeat); err != nil {
		return err
	}
	return c.until(phase, c.allReady)
}

// allReady reports whether all nodes are ready, and say so to everybody.
func (c *cluster) allReady(ctx context.Context) (bool, string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false, "", err
	}
	n := 0
	for i := range nodes.Items {
		for _, cond := range nodes.Items[i].Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status == v1.ConditionTrue && len(nodes.Items[i].Spec.Taints) == 0 {
				n++
			}
		}
	}
	return n >= c.nodes, fmt.Sprintf("%d nodes are ready", n), nil
}

// until waits for something, and says how far it was if that takes too long.
func (c *cluster) until(ctx context.Context, is func(context.Context) (done bool, state string, err error)) error {
	for {
		done, state, err := is(ctx)
		if err != nil || done {
			return err
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), state)
		}
	}
}

func (c *cluster) resting(ctx context.Context) error {
	select {
	case <-time.After(c.rest):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deploy makes the Deployment, with a budget for drains.
func (c *cluster) deploy(ctx context.Context) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromString("5%")), Selector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	if _, err := c.client.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		return err
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(c.pods)), Selector: &metav1.LabelSelector{MatchLabels: labels}, //nolint:gosec // it is a small number
		Template: v1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: v1.PodSpec{
				Containers: []v1.Container{{
					Name: "c", Image: "registry.example/web:1",
					Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
						v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("100Mi"),
					}},
				}},
				Tolerations: []v1.Toleration{{
					Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
					TolerationSeconds: new(int64(c.tolerate.Seconds())),
				}},
			},
		},
	}}
	if _, err := c.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return err
	}
	return c.until(ctx, c.complete)
}

// complete reports whether all pods are of the newest kind, and available.
func (c *cluster) complete(ctx context.Context) (bool, string, error) {
	d, err := c.client.AppsV1().Deployments(namespace).Get(ctx, app, metav1.GetOptions{})
	if err != nil {
		return false, "", err
	}
	s, want := d.Status, int32(c.pods) //nolint:gosec // it is a small number
	state := fmt.Sprintf("%d pods, %d of the newest kind, %d available", s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
	return s.ObservedGeneration >= d.Generation && s.Replicas == want && s.UpdatedReplicas == want && s.AvailableReplicas == want, state, nil
}

func (c *cluster) roll(ctx context.Context) error {
	patch := []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"registry.example/web:2"}]}}}}`)
	_, err := c.client.AppsV1().Deployments(namespace).Patch(ctx, app, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return c.until(ctx, c.complete)
}

func (c *cluster) node(i int) string { return fmt.Sprint("hollow-", i) }

// fail has nodes fail, and waits until none of their pods counts any more and all are available elsewhere.
func (c *cluster) fail(ctx context.Context) error {
	if err := servers.Each(ctx, clients, c.failed, func(ctx context.Context, i int) error { return c.patchNode(ctx, i, failPatch("true")) }); err != nil {
		return err
	}
	return c.until(ctx, func(ctx context.Context) (bool, string, error) {
		left, err := c.podsOn(ctx, c.failed, func(p *v1.Pod) bool { return p.DeletionTimestamp == nil })
		if err != nil || left > 0 {
			return false, fmt.Sprintf("%d pods stay on failed nodes", left), err
		}
		return c.complete(ctx)
	})
}

func failPatch(value string) string {
	if value == "" {
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, failing)
	}
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, failing, value)
}

func (c *cluster) patchNode(ctx context.Context, i int, patch string) error {
	_, err := c.client.CoreV1().Nodes().Patch(ctx, c.node(i), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// podsOn counts the pods on the first n nodes.
func (c *cluster) podsOn(ctx context.Context, n int, is func(*v1.Pod) bool) (int, error) {
	first := map[string]bool{}
	for i := range n {
		first[c.node(i)] = true
	}
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	count := 0
	for i := range pods.Items {
		if p := &pods.Items[i]; first[p.Spec.NodeName] && is(p) {
			count++
		}
	}
	return count, nil
}

// getWell has the failed nodes come back, and waits until they are ready and rid of the pods that were replaced.
func (c *cluster) getWell(ctx context.Context) error {
	if err := servers.Each(ctx, clients, c.failed, func(ctx context.Context, i int) error { return c.patchNode(ctx, i, failPatch("")) }); err != nil {
		return err
	}
	return c.until(ctx, func(ctx context.Context) (bool, string, error) {
		left, err := c.podsOn(ctx, c.failed, func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
		if err != nil || left > 0 {
			return false, fmt.Sprintf("%d pods are still ending", left), err
		}
		return c.allReady(ctx)
	})
}

// drainNodes drains the last nodes side by side, as kubectl drain does: what a budget holds up is tried again.
func (c *cluster) drainNodes(ctx context.Context) error {
	first := c.nodes - c.drain
	if err := servers.Each(ctx, clients, c.drain, func(ctx context.Context, i int) error {
		return c.patchNode(ctx, first+i, `{"spec":{"unschedulable":true}}`)
	}); err != nil {
		return err
	}
	if err := servers.Each(ctx, clients, c.drain, func(ctx context.Context, i int) error { return c.drainNode(ctx, c.node(first+i)) }); err != nil {
		return err
	}
	return c.until(ctx, c.complete)
}

func (c *cluster) drainNode(ctx context.Context, node string) error {
	on := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node, ResourceVersion: "0"}
	return c.until(ctx, func(ctx context.Context) (bool, string, error) {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, on)
		if err != nil {
			return false, "", err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp == nil {
				if err := c.evict(ctx, p); err != nil {
					return false, "", err
				}
			}
		}
		return len(pods.Items) == 0, fmt.Sprintf("%d pods are still on %s", len(pods.Items), node), nil
	})
}

func (c *cluster) evict(ctx context.Context, p *v1.Pod) error {
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}}
	err := c.client.PolicyV1().Evictions(p.Namespace).Evict(ctx, e)
	if apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err) {
		return nil // the budget allows no more now; or it is gone
	}
	return err
}
