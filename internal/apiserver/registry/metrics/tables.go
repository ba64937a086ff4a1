package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/apiserver/registry"
)

// columns are those of metrics-server, to the letter.
var columns = []metav1.TableColumnDefinition{
	registry.Column("Name", "string", "name", "Name of the resource", false),
	registry.Column("cpu", "string", "quantity", "", false),
	registry.Column("memory", "string", "quantity", "", false),
	registry.Column("Window", "string", "duration", "", false),
}

var nodeTable = registry.Table[*metricsv1beta1.NodeMetrics]{
	Columns: columns,
	Cells: func(m *metricsv1beta1.NodeMetrics, _ time.Time) []any {
		return []any{m.Name, m.Usage.Cpu().String(), m.Usage.Memory().String(), m.Window.Duration.String()}
	},
}

var podTable = registry.Table[*metricsv1beta1.PodMetrics]{
	Columns: columns,
	Cells: func(m *metricsv1beta1.PodMetrics, _ time.Time) []any {
		cpu, memory := sum(m.Containers, corev1.ResourceCPU), sum(m.Containers, corev1.ResourceMemory)
		return []any{m.Name, cpu.String(), memory.String(), m.Window.Duration.String()}
	},
}

func sum(containers []metricsv1beta1.ContainerMetrics, name corev1.ResourceName) resource.Quantity {
	var total resource.Quantity
	for _, c := range containers {
		total.Add(c.Usage[name])
	}
	return total
}
