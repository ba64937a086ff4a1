package queue

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var incoming = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "scheduler", Name: "queue_incoming_pods_total", StabilityLevel: metrics.STABLE,
	Help: "Number of pods that entered a queue, by what made them enter it.",
}, []string{"queue", "event"})

func init() { legacyregistry.MustRegister(incoming) }
