package validation

import (
	"slices"
	"strconv"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The rules are those that the comments of the types in k8s.io/api/scheduling/v1beta1 name. Fields of features that
// are off have been cleared (internal/api/gated): composite groups, perhaps topology, claims and preemption policies.

// Workload checks a new workload.
func Workload(w *schedulingv1beta1.Workload) field.ErrorList {
	p := &problems{}
	spec := field.NewPath("spec")
	if r := w.Spec.ControllerRef; r != nil {
		p.workloadController(spec.Child("controllerRef"), r)
	}
	at := spec.Child("podGroupTemplates")
	if p.groupTemplateNames(spec, w.Spec.PodGroupTemplates) {
		for i := range w.Spec.PodGroupTemplates {
			p.groupTemplate(at.Index(i), &w.Spec.PodGroupTemplates[i])
		}
	}
	return p.list
}

// WorkloadUpdate checks a workload that replaces old: of a template, no more than the size of its gang may change.
func WorkloadUpdate(w, old *schedulingv1beta1.Workload) field.ErrorList {
	p := &problems{}
	spec := field.NewPath("spec")
	p.unchanged(spec.Child("controllerRef"), w.Spec.ControllerRef, old.Spec.ControllerRef)
	at := spec.Child("podGroupTemplates")
	if !p.groupTemplateNames(spec, w.Spec.PodGroupTemplates) {
		return p.list
	}
	was := map[string]*schedulingv1beta1.PodGroupTemplate{}
	for i := range old.Spec.PodGroupTemplates {
		was[old.Spec.PodGroupTemplates[i].Name] = &old.Spec.PodGroupTemplates[i]
	}
	for i := range w.Spec.PodGroupTemplates {
		t := &w.Spec.PodGroupTemplates[i]
		before, known := was[t.Name]
		delete(was, t.Name)
		if !known {
			p.forbidden(at.Index(i), "item may not be added")
			continue
		}
		p.groupPolicyUpdate(at.Index(i).Child("schedulingPolicy"), &t.SchedulingPolicy, &before.SchedulingPolicy)
		p.unchanged(at.Index(i).Child("schedulingConstraints"), t.SchedulingConstraints, before.SchedulingConstraints)
		p.unchanged(at.Index(i).Child("resourceClaims"), t.ResourceClaims, before.ResourceClaims)
		p.unchanged(at.Index(i).Child("disruptionMode"), t.DisruptionMode, before.DisruptionMode)
		p.unchanged(at.Index(i).Child("priorityClassName"), t.PriorityClassName, before.PriorityClassName)
		p.unchanged(at.Index(i).Child("priority"), t.Priority, before.Priority)
		p.unchanged(at.Index(i).Child("preemptionPolicy"), t.PreemptionPolicy, before.PreemptionPolicy)
	}
	for i := range old.Spec.PodGroupTemplates {
		if name := old.Spec.PodGroupTemplates[i].Name; was[name] != nil {
			p.forbidden(at, "item may not be removed: %s", name)
		}
	}
	return p.list
}

// PodGroup checks a new pod group.
func PodGroup(g *schedulingv1beta1.PodGroup) field.ErrorList {
	p := &problems{}
	spec := field.NewPath("spec")
	if r := g.Spec.WorkloadRef; r != nil {
		at := spec.Child("workloadRef")
		if p.present(at.Child("workloadName"), r.WorkloadName) {
			p.subdomain(at.Child("workloadName"), r.WorkloadName)
		}
		if p.present(at.Child("templateName"), r.TemplateName) {
			p.label(at.Child("templateName"), r.TemplateName)
		}
	}
	p.groupPolicy(spec.Child("schedulingPolicy"), &g.Spec.SchedulingPolicy)
	p.groupTopology(spec.Child("schedulingConstraints"), g.Spec.SchedulingConstraints)
	p.groupClaims(spec.Child("resourceClaims"), g.Spec.ResourceClaims)
	p.disruptionMode(spec.Child("disruptionMode"), g.Spec.DisruptionMode)
	p.groupPriority(spec, g.Spec.PriorityClassName, g.Spec.Priority, g.Spec.PreemptionPolicy)
	return p.list
}

// PodGroupUpdate checks a group that replaces old: no more than the size of a gang may change.
func PodGroupUpdate(g, old *schedulingv1beta1.PodGroup) field.ErrorList {
	p := &problems{}
	spec := field.NewPath("spec")
	p.unchanged(spec.Child("workloadRef"), g.Spec.WorkloadRef, old.Spec.WorkloadRef)
	p.groupPolicyUpdate(spec.Child("schedulingPolicy"), &g.Spec.SchedulingPolicy, &old.Spec.SchedulingPolicy)
	p.unchanged(spec.Child("schedulingConstraints"), g.Spec.SchedulingConstraints, old.Spec.SchedulingConstraints)
	p.unchanged(spec.Child("resourceClaims"), g.Spec.ResourceClaims, old.Spec.ResourceClaims)
	p.unchanged(spec.Child("disruptionMode"), g.Spec.DisruptionMode, old.Spec.DisruptionMode)
	p.unchanged(spec.Child("priorityClassName"), g.Spec.PriorityClassName, old.Spec.PriorityClassName)
	p.unchanged(spec.Child("priority"), g.Spec.Priority, old.Spec.Priority)
	p.unchanged(spec.Child("preemptionPolicy"), g.Spec.PreemptionPolicy, old.Spec.PreemptionPolicy)
	return p.list
}

// PodGroupStatus checks the status of a group.
func PodGroupStatus(g *schedulingv1beta1.PodGroup) field.ErrorList {
	status := field.NewPath("status")
	p := &problems{list: metavalidation.ValidateConditions(g.Status.Conditions, status.Child("conditions"))}
	at, its := status.Child("resourceClaimStatuses"), g.Status.ResourceClaimStatuses
	if n := len(its); n > schedulingv1beta1.MaxPodGroupResourceClaims {
		p.add(field.TooMany(at, n, schedulingv1beta1.MaxPodGroupResourceClaims).WithOrigin("maxItems"))
		return p.list
	}
	seen := map[string]bool{}
	for i := range its {
		name := its[i].Name
		called := func(c schedulingv1beta1.PodGroupResourceClaim) bool { return c.Name == name }
		if !slices.ContainsFunc(g.Spec.ResourceClaims, called) {
			p.invalid(at.Index(i).Child("name"), name, "must match the name of an entry in `spec.resourceClaims`")
		} else if seen[name] {
			p.add(field.Duplicate(at.Index(i), name))
		}
		seen[name] = true
		if claim := its[i].ResourceClaimName; claim != nil {
			p.subdomain(at.Index(i).Child("resourceClaimName"), *claim)
		}
	}
	return p.list
}

func (p *problems) workloadController(at path, r *schedulingv1beta1.TypedLocalObjectReference) {
	if r.APIGroup != "" {
		p.subdomain(at.Child("apiGroup"), r.APIGroup)
	}
	if p.present(at.Child("kind"), r.Kind) {
		matches(p, at.Child("kind"), r.Kind, content.IsPathSegmentName(r.Kind))
	}
	if p.present(at.Child("name"), r.Name) {
		matches(p, at.Child("name"), r.Name, content.IsPathSegmentName(r.Name))
	}
}

// groupTemplateNames checks how many templates there are, and that each has a name of its own. It returns whether
// they are worth a closer look.
func (p *problems) groupTemplateNames(spec path, templates []schedulingv1beta1.PodGroupTemplate) bool {
	at := spec.Child("podGroupTemplates")
	switch n := len(templates); {
	case n == 0:
		p.add(field.Invalid(spec, "", "must specify one of: `podGroupTemplates`").WithOrigin("union"))
		return false
	case n > schedulingv1beta1.WorkloadMaxPodGroupTemplates:
		p.add(field.TooMany(at, n, schedulingv1beta1.WorkloadMaxPodGroupTemplates).WithOrigin("maxItems"))
		return false
	}
	seen := map[string]bool{}
	for i := range templates {
		name := templates[i].Name
		if p.present(at.Index(i).Child("name"), name) {
			p.label(at.Index(i).Child("name"), name)
			if seen[name] {
				p.add(field.Duplicate(at.Index(i), name))
			}
		}
		seen[name] = true
	}
	return true
}

func (p *problems) groupTemplate(at path, t *schedulingv1beta1.PodGroupTemplate) {
	p.groupPolicy(at.Child("schedulingPolicy"), &t.SchedulingPolicy)
	p.groupTopology(at.Child("schedulingConstraints"), t.SchedulingConstraints)
	p.groupClaims(at.Child("resourceClaims"), t.ResourceClaims)
	p.disruptionMode(at.Child("disruptionMode"), t.DisruptionMode)
	p.groupPriority(at, t.PriorityClassName, t.Priority, t.PreemptionPolicy)
}

// groupTopology checks that there is one domain at most, of a label.
func (p *problems) groupTopology(at path, c *schedulingv1beta1.PodGroupSchedulingConstraints) {
	if c == nil {
		return
	}
	at = at.Child("topology")
	if n := len(c.Topology); n > 1 {
		p.add(field.TooMany(at, n, 1).WithOrigin("maxItems"))
		return
	}
	for i, t := range c.Topology {
		if p.present(at.Index(i).Child("key"), t.Key) {
			matches(p, at.Index(i).Child("key"), t.Key, content.IsLabelKey(t.Key))
		}
	}
}

// groupClaims checks claims for devices that pods of a group have in common.
func (p *problems) groupClaims(at path, claims []schedulingv1beta1.PodGroupResourceClaim) {
	if n := len(claims); n > schedulingv1beta1.MaxPodGroupResourceClaims {
		p.add(field.TooMany(at, n, schedulingv1beta1.MaxPodGroupResourceClaims).WithOrigin("maxItems"))
		return
	}
	seen := map[string]bool{}
	for i := range claims {
		c, at := &claims[i], at.Index(i)
		if p.present(at.Child("name"), c.Name) {
			p.label(at.Child("name"), c.Name)
			if seen[c.Name] {
				p.add(field.Duplicate(at, c.Name))
			}
		}
		seen[c.Name] = true
		named, made := "resourceClaimName", "resourceClaimTemplateName"
		p.justOne(at, map[string]bool{named: c.ResourceClaimName != nil, made: c.ResourceClaimTemplateName != nil}, named, made)
		if c.ResourceClaimName != nil {
			p.subdomain(at.Child(named), *c.ResourceClaimName)
		}
		if c.ResourceClaimTemplateName != nil {
			p.subdomain(at.Child(made), *c.ResourceClaimTemplateName)
		}
	}
}

// groupPolicy checks that a policy is just one of the two.
func (p *problems) groupPolicy(at path, s *schedulingv1beta1.PodGroupSchedulingPolicy) {
	p.justOne(at, map[string]bool{"basic": s.Basic != nil, "gang": s.Gang != nil}, "basic", "gang")
	if s.Gang != nil {
		p.gangSize(at.Child("gang", "minCount"), s.Gang.MinCount)
	}
}

func (p *problems) gangSize(at path, n int32) {
	if n == 0 {
		p.required(at, "")
	} else if n < 1 {
		p.add(field.Invalid(at, n, "must be greater than or equal to 1").WithOrigin("minimum"))
	}
}

func (p *problems) groupPolicyUpdate(at path, s, old *schedulingv1beta1.PodGroupSchedulingPolicy) {
	p.unchanged(at.Child("basic"), s.Basic, old.Basic)
	switch gang := at.Child("gang"); {
	case s.Gang != nil && old.Gang == nil:
		p.add(field.Invalid(gang, s.Gang, "field cannot be set once created").WithOrigin("update"))
	case s.Gang == nil && old.Gang != nil:
		p.add(field.Invalid(gang, "", "field cannot be cleared once set").WithOrigin("update"))
	case s.Gang != nil && s.Gang.MinCount != old.Gang.MinCount:
		p.gangSize(gang.Child("minCount"), s.Gang.MinCount)
	}
}

func (p *problems) disruptionMode(at path, m *schedulingv1beta1.DisruptionMode) {
	if m != nil {
		p.justOne(at, map[string]bool{"single": m.Single != nil, "all": m.All != nil}, "single", "all")
	}
}

// justOne reports a union of which none or several members are set.
func (p *problems) justOne(at path, set map[string]bool, members ...string) {
	var list, given string
	n := 0
	for _, m := range members {
		list += ", `" + m + "`"
		if set[m] {
			given += ", " + m
			n++
		}
	}
	switch {
	case n == 0:
		p.add(field.Invalid(at, "", "must specify one of: "+list[2:]).WithOrigin("union"))
	case n > 1:
		p.add(field.Invalid(at, "{"+given[2:]+"}", "must specify exactly one of: "+list[2:]).WithOrigin("union"))
	}
}

func (p *problems) groupPriority(at path, class string, priority *int32, policy *schedulingv1beta1.PreemptionPolicy) {
	if class != "" {
		p.subdomain(at.Child("priorityClassName"), class)
	}
	if priority != nil && *priority > highestUserPriority {
		p.add(field.Invalid(at.Child("priority"), *priority, "must be less than or equal to "+strconv.Itoa(highestUserPriority)).WithOrigin("maximum"))
	}
	if policy != nil {
		oneOfRequired(p, at.Child("preemptionPolicy"), *policy, schedulingv1beta1.PreemptLowerPriority, schedulingv1beta1.PreemptNever)
	}
}
