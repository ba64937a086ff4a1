package statefulset

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

func gauge(name, help string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: "statefulset_controller", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	}, []string{"statefulset_namespace", "statefulset_name", "pod_management_policy"})
}

// Metrics under upstream's names.
var (
	mayBeUnavailable = gauge("statefulset_max_unavailable", "How many replicas may be unavailable during an update.")
	unavailable      = gauge("statefulset_unavailable_replicas", "How many replicas of a set are not available.")
)

func init() { legacyregistry.MustRegister(mayBeUnavailable, unavailable) }

func count(set *appsv1.StatefulSet, st *appsv1.StatefulSetStatus) {
	labels := []string{set.Namespace, set.Name, string(set.Spec.PodManagementPolicy)}
	mayBeUnavailable.WithLabelValues(labels...).Set(float64(maxUnavailable(set)))
	unavailable.WithLabelValues(labels...).Set(float64(max(0, size(set)-int(st.AvailableReplicas))))
}

// forgetCounts takes back what was counted of a set that is gone.
func forgetCounts(namespace, name string) {
	for _, policy := range []appsv1.PodManagementPolicyType{appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement} {
		for _, g := range []*metrics.GaugeVec{mayBeUnavailable, unavailable} {
			g.DeleteLabelValues(namespace, name, string(policy))
		}
	}
}
