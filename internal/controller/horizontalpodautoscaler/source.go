package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	metricsapi "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	customclient "k8s.io/metrics/pkg/client/custom_metrics"
	externalclient "k8s.io/metrics/pkg/client/external_metrics"
)

// source is where metrics come from. Amounts are thousandths.
type source interface {
	// resource returns what each pod, or the container of each, uses of a resource.
	resource(ctx context.Context, namespace string, pods labels.Selector, name v1.ResourceName, container string) (map[string]sample, error)
	// pods returns a metric of each pod.
	pods(ctx context.Context, namespace string, pods labels.Selector, metric string, selector labels.Selector) (map[string]sample, error)
	// object returns a metric of an object.
	object(ctx context.Context, namespace string, ref *autoscalingv2.CrossVersionObjectReference, metric string, selector labels.Selector) (int64, error)
	// external returns the values of a metric that is not of the cluster.
	external(ctx context.Context, namespace, metric string, selector labels.Selector) ([]int64, error)
}

// read gets what a metric needs.
func read(ctx context.Context, s source, namespace string, pods labels.Selector, m *autoscalingv2.MetricSpec) (r reading) {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		r.samples, r.err = s.resource(ctx, namespace, pods, m.Resource.Name, "")
		return r
	case autoscalingv2.ContainerResourceMetricSourceType:
		r.samples, r.err = s.resource(ctx, namespace, pods, m.ContainerResource.Name, m.ContainerResource.Container)
		return r
	}
	chosen, err := selectorOf(m)
	if err != nil {
		return reading{err: err}
	}
	selector, err := metav1.LabelSelectorAsSelector(chosen)
	if err != nil {
		return reading{err: err}
	}
	if chosen == nil {
		selector = labels.Everything()
	}
	switch m.Type {
	case autoscalingv2.PodsMetricSourceType:
		r.samples, r.err = s.pods(ctx, namespace, pods, m.Pods.Metric.Name, selector)
	case autoscalingv2.ObjectMetricSourceType:
		var value int64
		value, r.err = s.object(ctx, namespace, &m.Object.DescribedObject, m.Object.Metric.Name, selector)
		r.values = []int64{value}
	case autoscalingv2.ExternalMetricSourceType:
		r.values, r.err = s.external(ctx, namespace, m.External.Metric.Name, selector)
	}
	return r
}

// apis are the three metrics APIs.
type apis struct {
	resources  resourceclient.PodMetricsesGetter
	custom     customclient.CustomMetricsClient
	versions   customclient.AvailableAPIsGetter
	externally externalclient.ExternalMetricsClient
}

func newAPIs(cfg *rest.Config, d discovery.DiscoveryInterface, mapper meta.RESTMapper) (*apis, error) {
	a := &apis{versions: customclient.NewAvailableAPIsGetter(d)}
	var err error
	if a.resources, err = resourceclient.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("client of metrics.k8s.io: %w", err)
	}
	// Adapters of other makers serve these two, and JSON is what all of them speak.
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	a.custom = customclient.NewForConfig(cfg, mapper, a.versions)
	if a.externally, err = externalclient.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("client of external.metrics.k8s.io: %w", err)
	}
	return a, nil
}

var (
	errNoResource = errors.New("no metrics returned from resource metrics API")
	errNoCustom   = errors.New("no metrics returned from custom metrics API")
	errNoExternal = errors.New("no metrics returned from external metrics API")
)

func (a *apis) resource(ctx context.Context, namespace string, pods labels.Selector, name v1.ResourceName, container string) (map[string]sample, error) {
	list, err := a.resources.PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: pods.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errNoResource
	}
	out := make(map[string]sample, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		if value, ok := usage(p, name, container); ok {
			out[p.Name] = sample{value, p.Timestamp.Time, p.Window.Duration}
		}
	}
	return out, nil
}

// usage returns what a pod, or one of its containers, uses. It is not known unless it is known of all
// containers.
func usage(p *metricsapi.PodMetrics, name v1.ResourceName, container string) (total int64, known bool) {
	for _, c := range p.Containers {
		if container != "" && c.Name != container {
			continue
		}
		q, ok := c.Usage[name]
		if !ok {
			return 0, false
		}
		total, known = total+q.MilliValue(), true
	}
	return total, known
}

// failed looks at the versions of the custom metrics API anew next time.
func (a *apis) failed(err error) error {
	a.versions.Invalidate()
	return fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
}

func (a *apis) pods(_ context.Context, namespace string, pods labels.Selector, metric string, selector labels.Selector) (map[string]sample, error) {
	list, err := a.custom.NamespacedMetrics(namespace).GetForObjects(schema.GroupKind{Kind: "Pod"}, pods, metric, selector)
	if err != nil {
		return nil, a.failed(err)
	}
	if len(list.Items) == 0 {
		return nil, errNoCustom
	}
	out := make(map[string]sample, len(list.Items))
	for i := range list.Items {
		m, window := &list.Items[i], time.Minute
		if m.WindowSeconds != nil {
			window = time.Duration(*m.WindowSeconds) * time.Second
		}
		out[m.DescribedObject.Name] = sample{m.Value.MilliValue(), m.Timestamp.Time, window}
	}
	return out, nil
}

// object does not look at the name of a namespace: an autoscaler speaks only of its own.
func (a *apis) object(_ context.Context, namespace string, ref *autoscalingv2.CrossVersionObjectReference, metric string, selector labels.Selector) (int64, error) {
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	get := func() (customclient.MetricsInterface, string) { return a.custom.NamespacedMetrics(namespace), ref.Name }
	if kind == (schema.GroupKind{Kind: "Namespace"}) {
		get = func() (customclient.MetricsInterface, string) { return a.custom.RootScopedMetrics(), namespace }
	}
	api, name := get()
	value, err := api.GetForObject(kind, name, metric, selector)
	if err != nil {
		return 0, a.failed(err)
	}
	return value.Value.MilliValue(), nil
}

func (a *apis) external(_ context.Context, namespace, metric string, selector labels.Selector) ([]int64, error) {
	list, err := a.externally.NamespacedMetrics(namespace).List(metric, selector)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errNoExternal
	}
	out := make([]int64, len(list.Items))
	for i := range list.Items {
		out[i] = list.Items[i].Value.MilliValue()
	}
	return out, nil
}
