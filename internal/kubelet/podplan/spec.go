package podplan

import (
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// usesObjects reports whether a volume's content, or its size, can change while it is mounted.
func usesObjects(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// grace returns the pod's grace period in seconds: that of its deletion if it is being deleted,
// otherwise its own; never less than one second.
func grace(pod *v1.Pod) int64 {
	g := pods.Grace(pod)
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		g = *pod.DeletionGracePeriodSeconds
	}
	return max(g, 1)
}
