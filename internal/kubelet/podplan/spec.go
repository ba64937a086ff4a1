package podplan

import (
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// usesObjects tells whether a volume's content can change while it is mounted.
func usesObjects(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// grace is the pod's grace period in seconds: the deletion's when it is being
// deleted, its own otherwise; never less than one second.
func grace(pod *v1.Pod) int64 {
	g := pods.Grace(pod)
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		g = *pod.DeletionGracePeriodSeconds
	}
	return max(g, 1)
}
