package horizontalpodautoscaler

import (
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "horizontal_pod_autoscaler_controller"

// aboutActions is what the labels of all four mean.
const aboutActions = " The label 'action' is 'scale_down', 'scale_up' or 'none', the label 'error' 'spec', 'internal' or 'none'."

var (
	reconciliations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "reconciliations_total", StabilityLevel: metrics.BETA,
		Help: "Number of looks at autoscalers." + aboutActions,
	}, []string{"action", "error"})
	reconciliationTime = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "reconciliation_duration_seconds", StabilityLevel: metrics.BETA,
		Help:    "Time of one look in seconds." + aboutActions,
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"action", "error"})
	computations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "metric_computation_total", StabilityLevel: metrics.BETA,
		Help: "Number of computations of a metric, by the metric's type." + aboutActions,
	}, []string{"action", "error", "metric_type"})
	computationTime = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "metric_computation_duration_seconds", StabilityLevel: metrics.BETA,
		Help:    "Time of one computation in seconds, by the metric's type." + aboutActions,
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"action", "error", "metric_type"})
	autoscalers = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "num_horizontal_pod_autoscalers", StabilityLevel: metrics.ALPHA,
		Help: "Number of autoscalers.",
	})
	desired = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "desired_replicas", StabilityLevel: metrics.ALPHA,
		Help: "Size that an autoscaler wants for its target.",
	}, []string{"namespace", "hpa_name"})
)

func init() {
	legacyregistry.MustRegister(reconciliations, reconciliationTime, computations, computationTime, autoscalers, desired)
}

func action(from, to int32) string {
	switch {
	case to > from:
		return "scale_up"
	case to < from:
		return "scale_down"
	}
	return "none"
}

func fault(err error) string {
	if err != nil {
		return "internal"
	}
	return "none"
}

func reconciled(p *plan, err error, took time.Duration) {
	if p.failed != nil {
		err = p.failed
	}
	did := "none"
	if err == nil {
		did = action(p.current, p.size)
	}
	reconciliations.WithLabelValues(did, fault(err)).Inc()
	reconciliationTime.WithLabelValues(did, fault(err)).Observe(took.Seconds())
}

func computed(p *proposal, current int32, kind autoscalingv2.MetricSourceType, took time.Duration) {
	did := "none"
	if p.err == nil {
		did = action(current, p.replicas)
	}
	computations.WithLabelValues(did, fault(p.err), string(kind)).Inc()
	computationTime.WithLabelValues(did, fault(p.err), string(kind)).Observe(took.Seconds())
}
