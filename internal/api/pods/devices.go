package pods

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NativeResource reports whether a resource is Kubernetes' own, and not a device plugin's or the like.
func NativeResource(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// MayBeDevices reports whether a resource may stand for the devices of a DeviceClass (KEP-5004): an extended resource
// that a class names, or one that is called after a class.
func MayBeDevices(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) || !NativeResource(name)
}

// DropDevices removes from a pod's requests what is devices of a claim, by its status, and so nothing that its node
// gives. Of such a resource the scheduler finds all a pod asks for among devices, or nothing.
func DropDevices[V any](pod *v1.Pod, requests map[v1.ResourceName]V) {
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			delete(requests, v1.ResourceName(m.ResourceName))
		}
	}
}

// ReservedFor reports whether a claim is reserved for one, a pod or a group of pods.
func ReservedFor(claim *resourcev1.ResourceClaim, user types.UID) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID == user
	})
}

// PodOfClaim returns the pod for whose extended resources a claim was made, by what the claim says; nil if it says
// nothing of the sort. Who may change claims may let one look so.
func PodOfClaim(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(claim)
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil ||
		owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil
	}
	return owner
}
