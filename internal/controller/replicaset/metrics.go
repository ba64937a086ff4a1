package replicaset

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/api/pods"
)

// ageRatio has upstream's name.
var ageRatio = metrics.NewHistogram(&metrics.HistogramOpts{
	Subsystem: "replicaset_controller", Name: "sorting_deletion_age_ratio", StabilityLevel: metrics.ALPHA,
	Help:    "Age of a ready pod that was chosen to go, divided by that of the youngest ready pod: below 2, if ages are what decides.",
	Buckets: metrics.ExponentialBuckets(0.25, 2, 6),
})

func init() { legacyregistry.MustRegister(ageRatio) }

// countAges counts the ready pods that go.
func countAges(all, going []*v1.Pod, now time.Time) {
	var youngest time.Time
	for _, p := range all {
		if born := p.CreationTimestamp.Time; born.After(youngest) && isReady(p) {
			youngest = born
		}
	}
	for _, p := range going {
		if age := now.Sub(youngest); isReady(p) && age > 0 {
			ageRatio.Observe(float64(now.Sub(p.CreationTimestamp.Time)) / float64(age))
		}
	}
}

func isReady(p *v1.Pod) bool {
	_, ready := pods.ReadySince(p)
	return ready
}
