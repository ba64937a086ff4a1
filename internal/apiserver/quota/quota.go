// Package quota computes what objects use of a namespace's quota. It is pure but for
// Used, which adds up what storage holds.
package quota

import (
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"
)

// countPrefix counts objects of any resource: count/pods, count/roles.rbac.authorization.k8s.io.
const countPrefix = "count/"

// CountName is the quota resource that counts objects of r.
func CountName(r schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(countPrefix + r.String())
}

// By returns what one object of r uses of the resources that the quota limits.
func By(q *corev1.ResourceQuota, r schema.GroupResource, obj runtime.Object, now time.Time) corev1.ResourceList {
	if !matches(q, obj) {
		return nil
	}
	use, out := of(r, obj, now), corev1.ResourceList{}
	for name := range q.Spec.Hard {
		if have, ok := use[name]; ok {
			out[name] = have
		}
	}
	return out
}

// of returns what one object of r uses.
func of(r schema.GroupResource, obj runtime.Object, now time.Time) corev1.ResourceList {
	used := corev1.ResourceList{CountName(r): one()}
	switch o := obj.(type) {
	case *corev1.Pod:
		if ended(o, now) {
			return used // still counted as an object, but it holds nothing
		}
		addPod(used, o)
	case *corev1.Service:
		addService(used, o)
	case *corev1.PersistentVolumeClaim:
		addClaim(used, o)
	case *corev1.ConfigMap, *corev1.Secret, *corev1.ResourceQuota:
		used[corev1.ResourceName(r.Resource)] = one()
	}
	return used
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// ended reports whether a pod has ended, or should have by now: one that is stuck, on a
// lost node perhaps, must not keep its replacement away.
func ended(p *corev1.Pod, now time.Time) bool {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second))
}

func addPod(used corev1.ResourceList, p *corev1.Pod) {
	used[corev1.ResourcePods] = one()
	opts := resourcehelper.PodResourcesOptions{}
	for name, q := range resourcehelper.PodRequests(p, opts) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			used[name] = q
			used["requests."+name] = q
		default:
			if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				used[name] = q
			}
			used["requests."+name] = q
		}
	}
	for name, q := range resourcehelper.PodLimits(p, opts) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			used["limits."+name] = q
		}
	}
}

func addService(used corev1.ResourceList, s *corev1.Service) {
	used[corev1.ResourceServices] = one()
	ports := *resource.NewQuantity(int64(len(s.Spec.Ports)), resource.DecimalSI)
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		used[corev1.ResourceServicesNodePorts] = ports
	case corev1.ServiceTypeLoadBalancer:
		used[corev1.ResourceServicesLoadBalancers] = one()
		if a := s.Spec.AllocateLoadBalancerNodePorts; a == nil || *a {
			used[corev1.ResourceServicesNodePorts] = ports
		}
	}
}

const classSuffix = ".storageclass.storage.k8s.io/"

func addClaim(used corev1.ResourceList, c *corev1.PersistentVolumeClaim) {
	used[corev1.ResourcePersistentVolumeClaims] = one()
	storage := c.Spec.Resources.Requests[corev1.ResourceStorage]
	used[corev1.ResourceRequestsStorage] = storage
	if class := c.Spec.StorageClassName; class != nil && *class != "" {
		used[corev1.ResourceName(*class+classSuffix+"requests.storage")] = storage
		used[corev1.ResourceName(*class+classSuffix+"persistentvolumeclaims")] = one()
	}
}

// matches reports whether a quota is about the object: its scopes, which select pods.
func matches(q *corev1.ResourceQuota, obj runtime.Object) bool {
	for _, s := range scopes(q) {
		p, ok := obj.(*corev1.Pod)
		if !ok || !inScope(s, p) {
			return false
		}
	}
	return true
}

func scopes(q *corev1.ResourceQuota) []corev1.ScopedResourceSelectorRequirement {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, name := range q.Spec.Scopes {
		out = append(out, corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		out = append(out, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return out
}

func inScope(s corev1.ScopedResourceSelectorRequirement, p *corev1.Pod) bool {
	terminating := p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(p)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(p)
	case corev1.ResourceQuotaScopePriorityClass:
		return classInScope(s, p.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossNamespace(p)
	}
	return false
}

func classInScope(s corev1.ScopedResourceSelectorRequirement, class string) bool {
	in := false
	for _, v := range s.Values {
		in = in || v == class
	}
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		return in
	case corev1.ScopeSelectorOpNotIn:
		return !in
	case corev1.ScopeSelectorOpDoesNotExist:
		return class == ""
	default:
		return class != ""
	}
}

// bestEffort: no container asks for CPU or memory.
func bestEffort(p *corev1.Pod) bool {
	asks := func(r corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if q, ok := list[name]; ok && !q.IsZero() {
					return true
				}
			}
		}
		return false
	}
	if p.Spec.Resources != nil && asks(*p.Spec.Resources) {
		return false
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if asks(containers[i].Resources) {
				return false
			}
		}
	}
	return true
}

func crossNamespace(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	collect := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for _, w := range preferred {
			terms = append(terms, w.PodAffinityTerm)
		}
	}
	if f := a.PodAffinity; f != nil {
		collect(f.RequiredDuringSchedulingIgnoredDuringExecution, f.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if f := a.PodAntiAffinity; f != nil {
		collect(f.RequiredDuringSchedulingIgnoredDuringExecution, f.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for _, t := range terms {
		if len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			return true
		}
	}
	return false
}

// MustSpecify returns the compute resources that the quota limits and that some
// container of the pod leaves open: what it uses could not be told.
func MustSpecify(q *corev1.ResourceQuota, p *corev1.Pod) []corev1.ResourceName {
	var missing []corev1.ResourceName
	for name := range q.Spec.Hard {
		base, list, ok := computeResource(name)
		if !ok {
			continue
		}
		if r := p.Spec.Resources; r != nil {
			if _, set := list(*r)[base]; set {
				continue
			}
		}
		for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range containers {
				if _, set := list(containers[i].Resources)[base]; !set {
					missing = append(missing, name)
					break
				}
			}
			if len(missing) > 0 && missing[len(missing)-1] == name {
				break
			}
		}
	}
	return missing
}

// computeResource splits a quota resource into what containers call it and where they
// say it.
func computeResource(name corev1.ResourceName) (corev1.ResourceName, func(corev1.ResourceRequirements) corev1.ResourceList, bool) {
	requests := func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }
	limits := func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }
	switch name {
	case corev1.ResourceCPU, corev1.ResourceRequestsCPU:
		return corev1.ResourceCPU, requests, true
	case corev1.ResourceMemory, corev1.ResourceRequestsMemory:
		return corev1.ResourceMemory, requests, true
	case corev1.ResourceLimitsCPU:
		return corev1.ResourceCPU, limits, true
	case corev1.ResourceLimitsMemory:
		return corev1.ResourceMemory, limits, true
	}
	return "", nil, false
}

// add adds from to sum.
func add(sum, from corev1.ResourceList) {
	for name, q := range from {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

// larger returns the larger of each.
func larger(a, b corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(a)
	for name, q := range b {
		if have, ok := a[name]; !ok || have.Cmp(q) < 0 {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// More returns by how much a is above b, of what is.
func More(a, b corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range a {
		d := q.DeepCopy()
		d.Sub(b[name])
		if d.Sign() > 0 {
			out[name] = d
		}
	}
	return out
}
