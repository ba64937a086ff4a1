package source

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/objects"
)

// apiReference names what of the API server a pod needs, or nothing: a static pod must
// run without one.
func apiReference(pod *v1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		if what := volumeReference(&pod.Spec.Volumes[i]); what != "" {
			return what
		}
	}
	refs := objects.Refs(pod)
	switch {
	case len(refs) == 0:
		return ""
	case slices.ContainsFunc(refs, func(r objects.Ref) bool { return r.Kind == objects.Secret }):
		return "secrets"
	default:
		return "configmaps"
	}
}

func volumeReference(v *v1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			switch s := &v.Projected.Sources[i]; {
			case s.ConfigMap != nil:
				return "configmaps (via projected volumes)"
			case s.Secret != nil:
				return "secrets (via projected volumes)"
			case s.ServiceAccountToken != nil:
				return "serviceaccounts (via projected volumes)"
			case s.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			case s.PodCertificate != nil:
				return "podcertificates"
			}
		}
	}
	return ""
}
