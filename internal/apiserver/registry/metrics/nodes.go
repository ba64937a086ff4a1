package metrics

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/apiserver/registry"
)

// Endpoints returns what serves the group. The caller closes the scraper when all requests are over.
func Endpoints(lookup *registry.Lookup, s *Scraper) map[string]rest.Storage {
	return map[string]rest.Storage{
		"nodes": &Nodes{registry.NewTableConvertor(nodeTable, nodeMetrics), lookup, s},
		"pods":  &Pods{registry.NewTableConvertor(podTable, podMetrics), lookup, s},
	}
}

var (
	nodeMetrics = metricsv1beta1.Resource("nodemetrics")
	podMetrics  = metricsv1beta1.Resource("podmetrics")
	nodes       = corev1.Resource("nodes")
	pods        = corev1.Resource("pods")
)

// Nodes serves NodeMetrics.
type Nodes struct {
	rest.TableConvertor
	lookup  *registry.Lookup
	scraper *Scraper
}

var (
	_ rest.Getter               = (*Nodes)(nil)
	_ rest.Lister               = (*Nodes)(nil)
	_ rest.Scoper               = (*Nodes)(nil)
	_ rest.SingularNameProvider = (*Nodes)(nil)
)

// New implements rest.Storage.
func (*Nodes) New() runtime.Object { return &metricsv1beta1.NodeMetrics{} }

// NewList implements rest.Lister.
func (*Nodes) NewList() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }

// Destroy implements rest.Storage.
func (*Nodes) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Nodes) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider. There is none, as upstream: "node" is a node.
func (*Nodes) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (n *Nodes) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := registry.Get[*corev1.Node](ctx, n.lookup, nodes, "", name)
	if err != nil {
		return nil, err
	}
	found, err := n.of(ctx, []*corev1.Node{node})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, apierrors.NewNotFound(nodeMetrics, name)
	}
	return &found[0], nil
}

// List implements rest.Lister.
func (n *Nodes) List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	list, err := registry.List[*corev1.NodeList](ctx, n.lookup, nodes, "", selected(opts))
	if err != nil {
		return nil, err
	}
	wanted := make([]*corev1.Node, 0, len(list.Items))
	for i := range list.Items {
		wanted = append(wanted, &list.Items[i])
	}
	found, err := n.of(ctx, wanted)
	if err != nil {
		return nil, err
	}
	return &metricsv1beta1.NodeMetricsList{Items: found}, nil
}

func (n *Nodes) of(ctx context.Context, wanted []*corev1.Node) ([]metricsv1beta1.NodeMetrics, error) {
	histories, err := n.scraper.all(ctx, wanted)
	if err != nil {
		return nil, err
	}
	out, now := make([]metricsv1beta1.NodeMetrics, 0, len(wanted)), time.Now()
	for _, node := range wanted {
		if m, ok := histories[node.Name].nodeMetrics(node, now); ok {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b metricsv1beta1.NodeMetrics) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// selected returns what a request selects. The fields can only be names and namespaces, which the
// scheme sees to.
func selected(opts *internalversion.ListOptions) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}
	if opts != nil && opts.LabelSelector != nil {
		p.Label = opts.LabelSelector
	}
	if opts != nil && opts.FieldSelector != nil {
		p.Field = opts.FieldSelector
	}
	return p
}
