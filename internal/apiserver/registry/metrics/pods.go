package metrics

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/apiserver/registry"
)

// Pods serves PodMetrics.
type Pods struct {
	rest.TableConvertor
	lookup  *registry.Lookup
	scraper *Scraper
}

var (
	_ rest.Getter               = (*Pods)(nil)
	_ rest.Lister               = (*Pods)(nil)
	_ rest.Scoper               = (*Pods)(nil)
	_ rest.SingularNameProvider = (*Pods)(nil)
)

// New implements rest.Storage.
func (*Pods) New() runtime.Object { return &metricsv1beta1.PodMetrics{} }

// NewList implements rest.Lister.
func (*Pods) NewList() runtime.Object { return &metricsv1beta1.PodMetricsList{} }

// Destroy implements rest.Storage.
func (*Pods) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Pods) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider. There is none, as upstream: "pod" is a pod.
func (*Pods) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (p *Pods) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	pod, err := registry.Get[*corev1.Pod](ctx, p.lookup, pods, namespace, name)
	if err != nil {
		return nil, err
	}
	found, err := p.of(ctx, []corev1.Pod{*pod})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, apierrors.NewNotFound(podMetrics, namespace+"/"+name)
	}
	return &found[0], nil
}

// List implements rest.Lister.
func (p *Pods) List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	list, err := registry.List[*corev1.PodList](ctx, p.lookup, pods, genericapirequest.NamespaceValue(ctx), selected(opts))
	if err != nil {
		return nil, err
	}
	found, err := p.of(ctx, list.Items)
	if err != nil {
		return nil, err
	}
	return &metricsv1beta1.PodMetricsList{Items: found}, nil
}

// of returns what those of the pods use that run. Only their nodes are asked.
func (p *Pods) of(ctx context.Context, candidates []corev1.Pod) ([]metricsv1beta1.PodMetrics, error) {
	var wanted []*corev1.Pod
	for i := range candidates {
		if pod := &candidates[i]; pod.Status.Phase == corev1.PodRunning && pod.Spec.NodeName != "" {
			wanted = append(wanted, pod)
		}
	}
	on, err := p.nodesOf(ctx, wanted)
	if err != nil {
		return nil, err
	}
	histories, err := p.scraper.all(ctx, on)
	if err != nil {
		return nil, err
	}
	out, now := make([]metricsv1beta1.PodMetrics, 0, len(wanted)), time.Now()
	for _, pod := range wanted {
		if m, ok := histories[pod.Spec.NodeName].podMetrics(pod, now); ok {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out, nil
}

// nodesOf returns the nodes of pods, those that exist.
func (p *Pods) nodesOf(ctx context.Context, wanted []*corev1.Pod) ([]*corev1.Node, error) {
	seen, out := map[string]bool{}, []*corev1.Node(nil)
	for _, pod := range wanted {
		name := pod.Spec.NodeName
		if seen[name] {
			continue
		}
		seen[name] = true
		node, err := registry.Get[*corev1.Node](ctx, p.lookup, nodes, "", name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}
