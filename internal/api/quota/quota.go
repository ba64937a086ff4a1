// Package quota computes what objects use of a namespace's quota (pure). Admission enforces quotas by
// it, and the controller of quotas writes their status by it, so that both count alike.
package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
)

// countPrefix counts objects of any resource: count/pods, count/roles.rbac.authorization.k8s.io.
const countPrefix = "count/"

// CountName is the quota resource that counts objects of r.
func CountName(r schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(countPrefix + r.String())
}

// By returns how much one object of r uses of the resources that the quota limits. d is only asked about claims for
// devices; nil knows of no other objects.
func By(q *corev1.ResourceQuota, r schema.GroupResource, obj runtime.Object, now time.Time, d Devices) corev1.ResourceList {
	if !matches(q, obj) {
		return nil
	}
	use, out := of(r, obj, now, d), corev1.ResourceList{}
	for name := range q.Spec.Hard {
		if have, ok := use[name]; ok {
			out[name] = have
		}
	}
	return out
}

// of returns what one object of r uses.
func of(r schema.GroupResource, obj runtime.Object, now time.Time, d Devices) corev1.ResourceList {
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
	case *resourcev1.ResourceClaim:
		addDevices(used, o, d, now)
	default:
		if r.Group == "" && counts[r.Resource] {
			used[corev1.ResourceName(r.Resource)] = one()
		}
	}
	return used
}

// counts are the core resources whose objects can be counted by the resource's own name, besides those
// with more to them. Of these, and of all that is counted with the prefix, metadata are enough.
var counts = map[string]bool{"configmaps": true, "secrets": true, "resourcequotas": true, "replicationcontrollers": true}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// ended reports whether a pod has ended, or should have by now: a pod that is stuck, perhaps on a
// lost node, must not block its replacement.
func ended(p *corev1.Pod, now time.Time) bool {
	if pods.IsTerminal(p.Status.Phase) {
		return true
	}
	end, ok := EndOf(p)
	return ok && now.After(end)
}

// EndOf returns when a pod that is being deleted uses nothing any more, even if it is still there.
func EndOf(p *corev1.Pod) (time.Time, bool) {
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
		return time.Time{}, false
	}
	return p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second), true
}

func addPod(used corev1.ResourceList, p *corev1.Pod) {
	used[corev1.ResourcePods] = one()
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true} // after a resize, what the node has taken back is free
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
		if a := s.Spec.AllocateLoadBalancerNodePorts; a != nil && !*a {
			ports = askedNodePorts(s)
		}
		used[corev1.ResourceServicesNodePorts] = ports
	}
}

// askedNodePorts counts the node ports that a service itself asks for.
func askedNodePorts(s *corev1.Service) resource.Quantity {
	var asked int64
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			asked++
		}
	}
	return *resource.NewQuantity(asked, resource.DecimalSI)
}

const classSuffix = ".storageclass.storage.k8s.io/"

func addClaim(used corev1.ResourceList, c *corev1.PersistentVolumeClaim) {
	used[corev1.ResourcePersistentVolumeClaims] = one()
	storage := storageOf(c)
	used[corev1.ResourceRequestsStorage] = storage
	if class := volume.GetPersistentVolumeClaimClass(c); class != "" {
		used[corev1.ResourceName(class+classSuffix+"requests.storage")] = storage
		used[corev1.ResourceName(class+classSuffix+"persistentvolumeclaims")] = one()
	}
}

// storageOf returns what a claim asks for, or what its volume has if that is more, in whole bytes.
func storageOf(c *corev1.PersistentVolumeClaim) resource.Quantity {
	storage := c.Spec.Resources.Requests.Storage().DeepCopy()
	if has, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && has.Cmp(storage) > 0 {
		storage = has.DeepCopy()
	}
	storage.RoundUp(0)
	return storage
}

// matches reports whether a quota applies to the object: its scopes select pods, or claims.
func matches(q *corev1.ResourceQuota, obj runtime.Object) bool {
	for _, s := range scopes(q) {
		switch o := obj.(type) {
		case *corev1.Pod:
			if !podInScope(s, o) {
				return false
			}
		case *corev1.PersistentVolumeClaim:
			if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass || !inScope(s, attributesClasses(o)...) {
				return false
			}
		default:
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

func podInScope(s corev1.ScopedResourceSelectorRequirement, p *corev1.Pod) bool {
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
		return inScope(s, p.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossNamespace(p)
	}
	return false
}

// attributesClasses returns the volume attributes classes that a claim asks for, has, or is about
// to have.
func attributesClasses(c *corev1.PersistentVolumeClaim) []string {
	classes := []string{ptr.Deref(c.Spec.VolumeAttributesClassName, ""), ptr.Deref(c.Status.CurrentVolumeAttributesClassName, "")}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		classes = append(classes, m.TargetVolumeAttributesClassName)
	}
	return classes
}

// inScope reports whether the scope selects one of an object's classes; "" means no class.
func inScope(s corev1.ScopedResourceSelectorRequirement, classes ...string) bool {
	classes = slices.DeleteFunc(classes, func(class string) bool { return class == "" })
	selected := func(class string) bool { return slices.Contains(s.Values, class) }
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		return slices.ContainsFunc(classes, selected)
	case corev1.ScopeSelectorOpNotIn:
		return len(classes) == 0 || slices.ContainsFunc(classes, func(class string) bool { return !selected(class) })
	case corev1.ScopeSelectorOpDoesNotExist:
		return len(classes) == 0
	default:
		return len(classes) > 0
	}
}

func bestEffort(p *corev1.Pod) bool { return qos.ComputePodQOS(p) == corev1.PodQOSBestEffort }

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

// MustSpecify returns the compute resources that the quota limits but containers of the pod leave
// unset, and these containers: nobody could know what they use. It returns "" if there are none, or
// if the pod sets resources for all its containers.
func MustSpecify(q *corev1.ResourceQuota, p *corev1.Pod) string {
	if resourcehelper.IsPodLevelResourcesSet(p) {
		return ""
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		base, list, ok := computeResource(name)
		if !ok {
			continue
		}
		var who []string
		for c := range pods.Containers(&p.Spec) {
			if _, set := list(c.Resources)[base]; !set {
				who = append(who, c.Name)
			}
		}
		if len(who) > 0 {
			slices.Sort(who)
			missing = append(missing, fmt.Sprintf("%s for: %s", name, strings.Join(who, ",")))
		}
	}
	return strings.Join(missing, "; ")
}

// computeResource returns the name that containers use for a quota resource, and the list that
// holds it.
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

// Add adds each quantity of from to sum.
func Add(sum, from corev1.ResourceList) {
	for name, q := range from {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

// Larger returns, for each resource, the larger quantity.
func Larger(a, b corev1.ResourceList) corev1.ResourceList {
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

// More returns by how much a exceeds b, for the resources where it does.
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

// Equal reports whether both lists have the same resources in the same quantities.
func Equal(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// Limited returns, of what is used, each resource that the quota limits; zero for one that is not used.
func Limited(q *corev1.ResourceQuota, used corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		out[name] = used[name]
	}
	return out
}

// Counted returns the resources whose objects use what the quota limits.
func Counted(q *corev1.ResourceQuota) []schema.GroupResource {
	set := map[schema.GroupResource]bool{}
	for name := range q.Spec.Hard {
		set[resourceOf(string(name))] = true
		if named(string(name)) {
			set[DeviceClaims] = true
		}
	}
	return slices.Collect(maps.Keys(set))
}

func resourceOf(name string) schema.GroupResource {
	if count, ok := strings.CutPrefix(name, countPrefix); ok {
		return schema.ParseGroupResource(count)
	}
	switch {
	case strings.HasPrefix(name, "services"):
		return schema.GroupResource{Resource: "services"}
	case name == "requests.storage", name == "persistentvolumeclaims", strings.Contains(name, classSuffix):
		return schema.GroupResource{Resource: "persistentvolumeclaims"}
	case strings.HasSuffix(name, corev1.ResourceClaimsPerClass):
		return DeviceClaims
	case counts[name]:
		return schema.GroupResource{Resource: name}
	}
	return schema.GroupResource{Resource: "pods"}
}
