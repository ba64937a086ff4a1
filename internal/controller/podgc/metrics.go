package podgc

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Why pods are removed, as upstream's label has it.
const (
	terminated  = "terminated"
	orphaned    = "orphaned"
	lost        = "out-of-service"
	unscheduled = "unscheduled"
)

func counter(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "pod_gc_collector", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	}, []string{"namespace", "reason"})
}

// Metrics under upstream's names.
var (
	removed      = counter("force_delete_pods_total", "Pods whose removal was asked for.")
	removeErrors = counter("force_delete_pod_errors_total", "Pods that could not be removed.")
)

func init() { legacyregistry.MustRegister(removed, removeErrors) }
