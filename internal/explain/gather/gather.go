// Package gather collects, for `wherry explain`, the facts about an object: from the API server, and
// about pods from the kubelet of their node too. What the user may not read is left out and named.
package gather

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/explain"
)

// Target is an object to explain.
type Target struct{ Kind, Namespace, Name string }

// words are the names of kinds, as kubectl has them.
var words = map[string][]string{
	"Pod":                     {"pod", "pods", "po"},
	"Deployment":              {"deployment", "deployments", "deploy"},
	"ReplicaSet":              {"replicaset", "replicasets", "rs"},
	"StatefulSet":             {"statefulset", "statefulsets", "sts"},
	"DaemonSet":               {"daemonset", "daemonsets", "ds"},
	"Job":                     {"job", "jobs"},
	"CronJob":                 {"cronjob", "cronjobs", "cj"},
	"Service":                 {"service", "services", "svc"},
	"HorizontalPodAutoscaler": {"horizontalpodautoscaler", "horizontalpodautoscalers", "hpa"},
	"PersistentVolumeClaim":   {"persistentvolumeclaim", "persistentvolumeclaims", "pvc"},
}

// Parse reads TYPE/NAME; NAME alone is a pod's. A type may have its group ("deployments.apps").
func Parse(arg string) (Target, error) {
	word, name, ok := strings.Cut(arg, "/")
	if !ok {
		word, name = "pod", arg
	}
	if name == "" || strings.Contains(name, "/") {
		return Target{}, fmt.Errorf("%q: want TYPE/NAME", arg)
	}
	plain, _, _ := strings.Cut(strings.ToLower(word), ".")
	for kind, its := range words {
		if slices.Contains(its, plain) {
			return Target{Kind: kind, Name: name}, nil
		}
	}
	return Target{}, fmt.Errorf("%q: no explanation of the type %q; there is one of pod, deploy, rs, sts, ds, job, cronjob, svc, hpa and pvc", arg, word)
}

// gatherer reads what the explanation of one object needs.
type gatherer struct {
	kubernetes.Interface
	Target
	about  explain.About
	client *explain.Client // who wants to reach the object; nil, if nobody in particular
}

// Explain reads the facts about an object and explains it, along with the pods that hold it up.
func Explain(ctx context.Context, client kubernetes.Interface, t Target) (explain.Explanation, error) {
	g := &gatherer{Interface: client, Target: t, about: explain.About{Now: time.Now()}}
	kinds := map[string]func(context.Context) (explain.Explanation, error){
		"Pod": g.pod, "Deployment": g.deployment, "ReplicaSet": g.replicaSet, "StatefulSet": g.statefulSet, "DaemonSet": g.daemonSet,
		"Job": g.job, "CronJob": g.cronJob, "Service": g.service, "HorizontalPodAutoscaler": g.autoscaler, "PersistentVolumeClaim": g.claim,
	}
	x, err := kinds[t.Kind](ctx)
	if err != nil {
		return x, err
	}
	askPods(ctx, client, &x)
	return x, nil
}

// askPods adds the explanations of the pods that hold the object up.
func askPods(ctx context.Context, client kubernetes.Interface, x *explain.Explanation) {
	for _, p := range x.Ask() {
		x.Add(explain.Explain(podFacts(ctx, client, p)))
	}
}

// WhyNode explains how the node of a pod was chosen.
func WhyNode(ctx context.Context, client kubernetes.Interface, t Target) (x explain.Explanation, err error) {
	if t.Kind != "Pod" {
		return x, fmt.Errorf("%s/%s: only a pod has a node that was chosen for it", t.Kind, t.Name)
	}
	p, err := client.CoreV1().Pods(t.Namespace).Get(ctx, t.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.Facts{Now: time.Now(), Pod: p}
	if p.Spec.NodeName == "" {
		return explain.Explain(podFacts(ctx, client, p)), nil
	}
	askScheduler(ctx, client, &f)
	return explain.WhyNode(f), nil
}

func (g *gatherer) pod(ctx context.Context) (x explain.Explanation, err error) {
	p, err := g.CoreV1().Pods(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	return explain.Explain(podFacts(ctx, g, p)), nil
}

// unread notes what could not be read. It reports whether there was such an error.
func (g *gatherer) unread(what string, err error) bool {
	if err != nil {
		g.about.Unread = append(g.about.Unread, fmt.Sprintf("%s could not be read: %v", what, err))
	}
	return err != nil
}

// on returns what is known of any object, about the one with the UID.
func (g *gatherer) on(ctx context.Context, uid types.UID) explain.About {
	events, err := eventsOf(ctx, g, g.Namespace, uid)
	g.unread("events", err)
	g.about.Events = events
	return g.about
}

func eventsOf(ctx context.Context, client kubernetes.Interface, namespace string, uid types.UID) ([]v1.Event, error) {
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// crowd reads what is known of the pods of a workload: those with the labels that one of the owners
// controls.
func (g *gatherer) crowd(ctx context.Context, selector *metav1.LabelSelector, owners ...metav1.Object) (explain.Crowd, error) {
	var c explain.Crowd
	var err error
	if c.Pods, err = g.controlled(ctx, selector, owners...); err != nil {
		return c, err
	}
	budgets, err := g.PolicyV1().PodDisruptionBudgets(g.Namespace).List(ctx, metav1.ListOptions{})
	if !g.unread("budgets", err) {
		c.Budgets = budgets.Items
	}
	return c, nil
}

// controlled lists the pods with the labels that one of the owners controls.
func (g *gatherer) controlled(ctx context.Context, selector *metav1.LabelSelector, owners ...metav1.Object) (out []*v1.Pod, err error) {
	uids := map[types.UID]bool{}
	for _, o := range owners {
		uids[o.GetUID()] = true
	}
	all, err := g.podsOf(ctx, selector)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && uids[ref.UID] {
			out = append(out, p)
		}
	}
	return out, nil
}

// podsOf lists pods with the labels; all of the namespace, if the selector is nil.
func (g *gatherer) podsOf(ctx context.Context, selector *metav1.LabelSelector) ([]*v1.Pod, error) {
	var opts metav1.ListOptions
	if selector != nil {
		opts.LabelSelector = metav1.FormatLabelSelector(selector)
	}
	list, err := g.CoreV1().Pods(g.Namespace).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// podFacts reads everything that the explanation of a pod is based on, leaving out what the user may
// not read.
func podFacts(ctx context.Context, client kubernetes.Interface, pod *v1.Pod) explain.Facts {
	f := explain.Facts{Now: time.Now(), Pod: pod}
	var err error
	if events, err := eventsOf(ctx, client, pod.Namespace, pod.UID); err == nil {
		f.Events = events
	}
	if pod.Spec.NodeName == "" {
		askScheduler(ctx, client, &f)
		return f
	}
	f.Node, err = client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		f.Node, f.NodeGone = nil, apierrors.IsNotFound(err)
	}
	if !f.NodeGone {
		askKubelet(ctx, client, &f)
	}
	return f
}
