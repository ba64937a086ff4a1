package validation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LimitRange checks a limit range, and that its bounds do not contradict each other.
func LimitRange(l *corev1.LimitRange) field.ErrorList {
	p := &problems{}
	seen := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		p.limitType(at.Child("type"), item.Type)
		if seen[item.Type] {
			p.add(field.Duplicate(at.Child("type"), item.Type))
		}
		seen[item.Type] = true
		p.limitItem(at, item)
	}
	return p.list
}

func (p *problems) limitType(at path, kind corev1.LimitType) {
	p.qualified(at, string(kind))
	standard := []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}
	if !strings.Contains(string(kind), "/") && !slices.Contains(standard, kind) {
		p.invalid(at, kind, "must be a standard limit type or fully qualified")
	}
}

func (p *problems) limitItem(at path, item *corev1.LimitRangeItem) {
	lists := map[string]corev1.ResourceList{
		"max": item.Max, "min": item.Min, "default": item.Default, "defaultRequest": item.DefaultRequest, "maxLimitRequestRatio": item.MaxLimitRequestRatio,
	}
	for name, list := range lists {
		for _, r := range slices.Sorted(maps.Keys(list)) {
			if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
				p.containerResourceName(at.Child(name).Key(string(r)), r)
			} else {
				p.resourceName(at.Child(name).Key(string(r)), r)
			}
		}
	}
	if item.Type == corev1.LimitTypePod {
		for _, name := range []string{"default", "defaultRequest"} {
			if len(lists[name]) > 0 {
				p.forbidden(at.Child(name), "may not be specified when `type` is 'Pod'")
			}
		}
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := item.Min[corev1.ResourceStorage]
		_, most := item.Max[corev1.ResourceStorage]
		if !least && !most {
			p.required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided")
		}
	}
	p.ordered(at, item, "min", "max")
	p.ordered(at, item, "min", "defaultRequest")
	p.ordered(at, item, "defaultRequest", "max")
	p.ordered(at, item, "defaultRequest", "default")
	p.ordered(at, item, "min", "default")
	p.ordered(at, item, "default", "max")
	for _, r := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		ratio := item.MaxLimitRequestRatio[r]
		if ratio.MilliValue() < 1000 {
			p.invalid(at.Child("maxLimitRequestRatio").Key(string(r)), ratio.String(), "ratio %s is less than 1", ratio.String())
		}
		least, hasLeast := item.Min[r]
		most, hasMost := item.Max[r]
		if !hasLeast || !hasMost {
			continue
		}
		if limit := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ratio.AsApproximateFloat64() > limit {
			p.invalid(at.Child("maxLimitRequestRatio").Key(string(r)), ratio.String(), "ratio %s is greater than max/min = %f", ratio.String(), limit)
		}
	}
}

// ordered reports amounts in low that exceed those in high.
func (p *problems) ordered(at path, item *corev1.LimitRangeItem, low, high string) {
	lists := map[string]corev1.ResourceList{"max": item.Max, "min": item.Min, "default": item.Default, "defaultRequest": item.DefaultRequest}
	words := map[string]string{"max": "max", "min": "min", "default": "default", "defaultRequest": "default request"}
	for _, r := range slices.Sorted(maps.Keys(lists[low])) {
		a := lists[low][r]
		b, ok := lists[high][r]
		if ok && a.Cmp(b) > 0 {
			p.invalid(at.Child(low).Key(string(r)), a.String(), "%s value %s is greater than %s value %s", words[low], a.String(), words[high], b.String())
		}
	}
}

var quotaScopes = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
	corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
}

// ResourceQuota checks a quota.
func ResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	p.quotaAmounts(at.Child("hard"), q.Spec.Hard)
	seen := map[corev1.ResourceQuotaScope]bool{}
	for _, s := range q.Spec.Scopes {
		p.quotaScope(at.Child("scopes"), s)
		seen[s] = true
	}
	if q.Spec.ScopeSelector != nil {
		for i, e := range q.Spec.ScopeSelector.MatchExpressions {
			at := at.Child("scopeSelector", "matchExpressions").Index(i)
			p.quotaScope(at.Child("scopeName"), e.ScopeName)
			p.scopeOperator(at, &e)
			seen[e.ScopeName] = true
		}
	}
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if seen[pair[0]] && seen[pair[1]] {
			p.invalid(at.Child("scopes"), q.Spec.Scopes, "conflicting scopes")
		}
	}
	return p.list
}

func (p *problems) resourceNameOfQuota(at path, name corev1.ResourceName) {
	p.resourceName(at, name)
	standard := slices.Contains(standardNames, name) || hugePages(name) || strings.HasPrefix(string(name), "requests.hugepages-")
	if !strings.Contains(string(name), "/") && !standard {
		p.invalid(at, name, "must be a standard resource for quota")
	}
}

func (p *problems) quotaScope(at path, scope corev1.ResourceQuotaScope) {
	if !slices.Contains(quotaScopes, scope) {
		p.invalid(at, scope, "unsupported scope")
	}
}

func (p *problems) scopeOperator(at path, e *corev1.ScopedResourceSelectorRequirement) {
	switch e.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(e.Values) == 0 {
			p.required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(e.Values) > 0 {
			p.invalid(at.Child("values"), e.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
		}
	default:
		p.invalid(at.Child("operator"), e.Operator, "not a valid selector operator")
	}
}

// ResourceQuotaUpdate checks a quota that replaces old. Its scopes cannot change.
func ResourceQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	p := &problems{list: ResourceQuota(q)}
	if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		p.invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, isImmutable)
	}
	return p.list
}

// ResourceQuotaStatusUpdate checks a new status of a resource quota. Whoever counts must say which
// version of the quota that was for.
func ResourceQuotaStatusUpdate(q, _ *corev1.ResourceQuota) field.ErrorList {
	p := &problems{}
	if q.ResourceVersion == "" {
		p.required(field.NewPath("resourceVersion"), "")
	}
	at := field.NewPath("status")
	p.quotaAmounts(at.Child("hard"), q.Status.Hard)
	p.quotaAmounts(at.Child("used"), q.Status.Used)
	return p.list
}

func (p *problems) quotaAmounts(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at := at.Key(string(name))
		p.resourceNameOfQuota(at, name)
		p.quantity(at, name, list[name])
	}
}
