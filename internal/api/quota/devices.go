package quota

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/api/pods"
)

// Claims for devices use CLASS.deviceclass.resource.k8s.io/devices. If a class stands for an extended resource
// (KEP-5004), they also use requests.RESOURCE, and requests.deviceclass.resource.kubernetes.io/CLASS, as pods do that ask
// for these by name: who may have two of them may not have more by way of claims.

// Devices says what else there is, of which it depends what a claim for devices uses.
type Devices interface {
	// ResourceOf returns the extended resource for which a class stands, or "".
	ResourceOf(class string) string
	// Pod returns a pod, or nil.
	Pod(namespace, name string) *corev1.Pod
	// Claims returns the claims for devices in a namespace.
	Claims(namespace string) []*resourcev1.ResourceClaim
}

// Claims for devices, and their classes.
var (
	DeviceClaims  = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
	DeviceClasses = schema.GroupResource{Group: resourcev1.GroupName, Resource: "deviceclasses"}
)

// addDevices adds what a claim may get at most. What its pod, for which the scheduler has made it, uses by name is not
// counted twice.
func addDevices(used corev1.ResourceList, c *resourcev1.ResourceClaim, d Devices, now time.Time) {
	classes := map[string]int64{}
	for i := range c.Spec.Devices.Requests {
		for class, n := range atMost(&c.Spec.Devices.Requests[i]) {
			classes[class] += n
		}
	}
	byName := corev1.ResourceList{}
	for class, n := range classes {
		q := *resource.NewQuantity(n, resource.DecimalSI)
		used[corev1.ResourceName(class+corev1.ResourceClaimsPerClass)] = q
		if d == nil {
			continue
		}
		if name := d.ResourceOf(class); name != "" {
			byName[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = q
			Add(byName, corev1.ResourceList{corev1.ResourceName(corev1.DefaultResourceRequestsPrefix + name): q})
		}
	}
	if len(byName) == 0 {
		return
	}
	counted := corev1.ResourceList{}
	if pod := madeFor(c, d); pod != nil && !ended(pod, now) {
		addPod(counted, pod)
	}
	Add(used, More(byName, counted))
}

// atMost returns how many devices of each class a request gets at most.
func atMost(r *resourcev1.DeviceRequest) map[string]int64 {
	out := map[string]int64{}
	if e := r.Exactly; e != nil {
		out[e.DeviceClassName] = number(e.AllocationMode, e.Count)
	}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		out[s.DeviceClassName] = max(out[s.DeviceClassName], number(s.AllocationMode, s.Count))
	}
	return out
}

func number(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return count
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0 // a newer server's
}

// madeFor returns the pod whose extended resources a claim stands for; nil if there is none. That it looks so is not
// enough, as its namespace's users can let any number of claims look so: the pod's status names it, or, as long as that
// names none, it is the first of them.
func madeFor(c *resourcev1.ResourceClaim, d Devices) *corev1.Pod {
	owner := pods.PodOfClaim(c)
	if owner == nil {
		return nil
	}
	pod := d.Pod(c.Namespace, owner.Name)
	if pod == nil || pod.UID != owner.UID {
		return nil
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		if s.ResourceClaimName != c.Name {
			return nil
		}
		return pod
	}
	earlier := func(o *resourcev1.ResourceClaim) bool {
		theirs := pods.PodOfClaim(o)
		return o.UID != c.UID && theirs != nil && theirs.UID == pod.UID &&
			cmp.Or(o.CreationTimestamp.Compare(c.CreationTimestamp.Time), cmp.Compare(o.Name, c.Name)) < 0
	}
	if slices.ContainsFunc(d.Claims(c.Namespace), earlier) {
		return nil
	}
	return pod
}

// PodOf returns the name of the pod for which a claim may have been made, or "".
func PodOf(c *resourcev1.ResourceClaim) string {
	if owner := pods.PodOfClaim(c); owner != nil {
		return owner.Name
	}
	return ""
}

// named reports whether a quota limits an extended resource, which pods use, and perhaps claims, too.
func named(resource string) bool {
	name, ok := strings.CutPrefix(resource, corev1.DefaultResourceRequestsPrefix)
	return ok && pods.MayBeDevices(corev1.ResourceName(name))
}
