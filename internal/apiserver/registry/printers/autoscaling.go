package printers

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// HorizontalPodAutoscalers is the table of autoscalers.
var HorizontalPodAutoscalers = registry.Table[*autoscalingv2.HorizontalPodAutoscaler]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Reference", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"]),
		column("Targets", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"]),
		column("MinPods", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"]),
		column("MaxPods", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"]),
		column("Replicas", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
		ageColumn,
	},
	Cells: func(a *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
		least := unset
		if n := a.Spec.MinReplicas; n != nil {
			least = strconv.Itoa(int(*n))
		}
		ref := a.Spec.ScaleTargetRef
		return []any{
			a.Name, ref.Kind + "/" + ref.Name, metrics(a.Spec.Metrics, a.Status.CurrentMetrics), least,
			int64(a.Spec.MaxReplicas), int64(a.Status.CurrentReplicas), age(a, now),
		}
	},
}

// metrics shows what the first two metrics are and should be.
func metrics(specs []autoscalingv2.MetricSpec, current []autoscalingv2.MetricStatus) string {
	const shown = 2
	var out []string
	for i := range specs {
		var now autoscalingv2.MetricStatus
		if i < len(current) {
			now = current[i]
		}
		out = append(out, metric(&specs[i], &now))
	}
	switch {
	case len(out) == 0:
		return none
	case len(out) > shown:
		return fmt.Sprintf("%s + %d more...", strings.Join(out[:shown], ", "), len(out)-shown)
	}
	return strings.Join(out, ", ")
}

func metric(m *autoscalingv2.MetricSpec, now *autoscalingv2.MetricStatus) string {
	var is autoscalingv2.MetricValueStatus
	switch {
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		if now.External != nil {
			is = now.External.Current
		}
		return outside(&m.External.Target, &is)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		if now.Object != nil {
			is = now.Object.Current
		}
		return outside(&m.Object.Target, &is)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		if now.Pods != nil {
			is = now.Pods.Current
		}
		return quantity(is.AverageValue) + "/" + quantity(m.Pods.Target.AverageValue)
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		if now.Resource != nil {
			is = now.Resource.Current
		}
		return fmt.Sprintf("%s: %s", m.Resource.Name, inside(&m.Resource.Target, &is))
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		if now.ContainerResource != nil {
			is = now.ContainerResource.Current
		}
		return fmt.Sprintf("%s: %s", m.ContainerResource.Name, inside(&m.ContainerResource.Target, &is))
	}
	return "<unknown type>"
}

// outside shows a metric of something that is not the pods.
func outside(t *autoscalingv2.MetricTarget, is *autoscalingv2.MetricValueStatus) string {
	if t.AverageValue != nil {
		return quantity(is.AverageValue) + "/" + quantity(t.AverageValue) + " (avg)"
	}
	return quantity(is.Value) + "/" + quantity(t.Value)
}

// inside shows a metric of a resource that pods use.
func inside(t *autoscalingv2.MetricTarget, is *autoscalingv2.MetricValueStatus) string {
	if t.AverageValue != nil {
		return quantity(is.AverageValue) + "/" + quantity(t.AverageValue)
	}
	percent := func(n *int32, otherwise string) string {
		if n == nil {
			return otherwise
		}
		return strconv.Itoa(int(*n)) + "%"
	}
	return percent(is.AverageUtilization, unknown) + "/" + percent(t.AverageUtilization, "<auto>")
}

func quantity(q *resource.Quantity) string {
	if q == nil {
		return unknown
	}
	return q.String()
}
