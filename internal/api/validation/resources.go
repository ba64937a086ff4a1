package validation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/api/pods"
)

// standardNames are the resources that need no prefix.
var standardNames = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// wholeNames are resources that are counted in whole numbers.
var wholeNames = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// native reports whether a resource is Kubernetes' own, and not a device plugin's or the like.
func native(name corev1.ResourceName) bool { return pods.NativeResource(name) }

// IsExtendedResource reports whether a resource is a device plugin's or the like.
func IsExtendedResource(name corev1.ResourceName) bool { return extended(name) }

func extended(name corev1.ResourceName) bool {
	return !native(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(utilvalidation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// overcommit reports whether the limits of a resource can exceed its requests: not for huge pages
// and devices.
func overcommit(name corev1.ResourceName) bool { return native(name) && !hugePages(name) }

// resourceName checks a name, and reports whether it is well-formed.
func (p *problems) resourceName(at path, name corev1.ResourceName) bool {
	messages := utilvalidation.IsQualifiedName(string(name))
	matches(p, at, name, messages)
	if len(messages) > 0 {
		return false
	}
	standard := slices.Contains(standardNames, name) || hugePages(name) ||
		strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix+corev1.ResourceHugePagesPrefix)
	if !strings.Contains(string(name), "/") && !standard {
		p.invalid(at, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

func (p *problems) containerResourceName(at path, name corev1.ResourceName) {
	p.resourceName(at, name)
	switch {
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !hugePages(name) {
			p.invalid(at, name, "must be a standard resource for containers")
		}
	case !native(name) && !extended(name):
		p.invalid(at, name, "doesn't follow extended resource name standard")
	}
}

func (p *problems) podResourceName(at path, name corev1.ResourceName) {
	if p.resourceName(at, name) && !resourcehelper.IsSupportedPodLevelResource(name) {
		p.add(notSupported(at, name, resourcehelper.SupportedPodLevelResources().UnsortedList()))
	}
}

// quantity checks that an amount is not negative, and that it is whole if fractions make no sense.
func (p *problems) quantity(at path, name corev1.ResourceName, q resource.Quantity) {
	p.quantityNotNegative(at, q)
	if (slices.Contains(wholeNames, name) || extended(name)) && q.MilliValue()%1000 != 0 {
		p.invalid(at, q, "must be an integer")
	}
	if hugePages(name) && !multipleOfPage(name, q) {
		p.invalid(at, q.String(), "%s is not positive integer multiple of %s", q.String(), name)
	}
}

func multipleOfPage(name corev1.ResourceName, q resource.Quantity) bool {
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || page.Sign() <= 0 || page.MilliValue()%1000 != 0 {
		return false
	}
	return q.Value()%page.Value() == 0
}

// requirements checks the resources of a container or pod. nameOK checks one name.
func (p *problems) requirements(at path, r *corev1.ResourceRequirements, claims []string, nameOK func(path, corev1.ResourceName)) {
	limits, requests := at.Child("limits"), at.Child("requests")
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		nameOK(limits.Key(string(name)), name)
		p.quantity(limits.Key(string(name)), name, r.Limits[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		q := r.Requests[name]
		nameOK(requests.Key(string(name)), name)
		p.quantity(requests.Key(string(name)), name, q)
		limit, limited := r.Limits[name]
		switch {
		case !limited && !overcommit(name):
			p.required(limits, "Limit must be set for non overcommitable resources")
		case limited && !overcommit(name) && q.Cmp(limit) != 0:
			p.invalid(requests, q.String(), "must be equal to %s limit of %s", name, limit.String())
		case limited && q.Cmp(limit) > 0:
			p.invalid(requests, q.String(), "must be less than or equal to %s limit of %s", name, limit.String())
		}
	}
	if asksForHugePages(r) && !asksForCompute(r) {
		p.forbidden(at, "HugePages require cpu or memory")
	}
	p.claimNames(at.Child("claims"), r.Claims, claims)
}

func asksForHugePages(r *corev1.ResourceRequirements) bool {
	return slices.ContainsFunc(slices.Sorted(maps.Keys(r.Limits)), hugePages) || slices.ContainsFunc(slices.Sorted(maps.Keys(r.Requests)), hugePages)
}

func asksForCompute(r *corev1.ResourceRequirements) bool {
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if _, ok := list[name]; ok {
				return true
			}
		}
	}
	return false
}

// claimNames checks that a container uses only claims of its pod, each once.
func (p *problems) claimNames(at path, used []corev1.ResourceClaim, have []string) {
	seen := map[string]bool{} // "name" or "name/request"
	for i, c := range used {
		at := at.Index(i)
		if !p.present(at, c.Name) {
			continue
		}
		key := c.Name
		if c.Request != "" {
			p.label(at.Child("request"), c.Request)
			key += "/" + c.Request
		}
		clash := seen[c.Name] || seen[key]
		if c.Request == "" {
			for other := range seen {
				clash = clash || strings.HasPrefix(other, c.Name+"/")
			}
		}
		if clash {
			p.add(field.Duplicate(at, key))
		}
		seen[key] = true
		if !slices.Contains(have, c.Name) {
			err := field.NotFound(at, c.Name)
			err.Detail = "must be one of the names in pod.spec.resourceClaims"
			if len(have) == 0 {
				err.Detail += " which is empty"
			} else {
				err.Detail += ": " + strings.Join(slices.Sorted(slices.Values(have)), ", ")
			}
			p.add(err)
		}
	}
}

// podResources checks the resources of the pod as a whole (KEP-2837).
func (p *problems) podResources(at path, spec *corev1.PodSpec, claims []string) {
	r := spec.Resources
	if r == nil {
		return
	}
	if spec.OS != nil && spec.OS.Name == corev1.Windows {
		p.forbidden(at, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		p.forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	p.requirements(at, r, claims, p.podResourceName)
	pod := &corev1.Pod{Spec: *spec}
	opts := resourcehelper.PodResourcesOptions{}
	for name, sum := range resourcehelper.AggregateContainerRequests(pod, opts) {
		if have, ok := r.Requests[name]; ok && sum.Cmp(have) > 0 {
			p.invalid(at.Child("requests").Key(string(name)), have.String(), "must be greater than or equal to aggregate container requests of %s", sum.String())
		}
	}
	for name, sum := range resourcehelper.AggregateContainerLimits(pod, opts) {
		if have, ok := r.Limits[name]; ok && hugePages(name) && sum.Cmp(have) > 0 {
			p.invalid(at.Child("limits").Key(string(name)), have.String(), "must be greater than or equal to aggregate container limits of %s", sum.String())
		}
	}
	for i := range spec.Containers {
		for _, name := range slices.Sorted(maps.Keys(spec.Containers[i].Resources.Limits)) {
			limit := spec.Containers[i].Resources.Limits[name]
			if have, ok := r.Limits[name]; ok && limit.Cmp(have) > 0 {
				p.invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(), "must be less than or equal to pod limits of %s", have.String())
			}
		}
	}
}

// podClaims checks the dynamic resources that a pod requests, and returns their names.
func (p *problems) podClaims(at path, claims []corev1.PodResourceClaim, mirror bool) []string {
	var names []string
	for i, c := range claims {
		at := at.Index(i)
		if mirror {
			p.forbidden(field.NewPath(""), "static pods do not support resource claims")
			continue
		}
		if p.present(at.Child("name"), c.Name) {
			if slices.Contains(names, c.Name) {
				p.add(field.Duplicate(at.Child("name"), c.Name))
			}
			p.label(at.Child("name"), c.Name)
			names = append(names, c.Name)
		}
		switch {
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			p.invalid(at, c, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			p.invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if c.ResourceClaimName != nil {
			p.subdomain(at.Child("resourceClaimName"), *c.ResourceClaimName)
		}
		if c.ResourceClaimTemplateName != nil {
			p.subdomain(at.Child("resourceClaimTemplateName"), *c.ResourceClaimTemplateName)
		}
	}
	return names
}
