package volumes

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// use is a claim that a pod uses. An ephemeral one is made for the pod, by another controller.
type use struct {
	name      string
	ephemeral bool
}

// uses returns the claims of a pod.
func uses(pod *v1.Pod) []use {
	var out []use
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			out = append(out, use{name: v.PersistentVolumeClaim.ClaimName})
		case v.Ephemeral != nil:
			out = append(out, use{name: ephemeral.VolumeClaimName(pod, v), ephemeral: true})
		}
	}
	return out
}

// usesClaim reports whether a pod uses the claim.
func usesClaim(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	if pod.Namespace != claim.Namespace {
		return false
	}
	for _, u := range uses(pod) {
		if u.name == claim.Name {
			return true
		}
	}
	return false
}

// bound reports whether a claim has its volume, and the controller of volumes is done with it.
func bound(claim *v1.PersistentVolumeClaim) bool {
	_, done := claim.Annotations[volume.AnnBindCompleted]
	return claim.Spec.VolumeName != "" && done
}

// key identifies a claim.
func key(namespace, name string) string { return namespace + "/" + name }

func keyOf(claim *v1.PersistentVolumeClaim) string { return key(claim.Namespace, claim.Name) }

// newClaimOf is the hint for a claim that appears.
func newClaimOf(pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, claim, err := framework.EventObjects[*v1.PersistentVolumeClaim](oldObj, newObj)
	if err != nil || claim == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(usesClaim(pod, claim))
}
