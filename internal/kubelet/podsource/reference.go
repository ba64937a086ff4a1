package podsource

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/objectcache"
)

// apiReference returns which part of the API server a pod needs, or an empty string: a static pod
// must run without an API server.
func apiReference(pod *v1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	refs := objectcache.Refs(pod)
	of := func(kind objectcache.Kind) bool {
		return slices.ContainsFunc(refs, func(r objectcache.Ref) bool { return r.Kind == kind })
	}
	switch {
	case of(objectcache.Secret):
		return "secrets"
	case of(objectcache.ConfigMap):
		return "configmaps"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		if what := volumeReference(&pod.Spec.Volumes[i]); what != "" {
			return what
		}
	}
	return ""
}

func volumeReference(v *v1.Volume) string {
	switch {
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.AzureFile != nil:
		return "secrets"
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			switch s := &v.Projected.Sources[i]; {
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
