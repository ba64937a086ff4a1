package validation

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Role checks a role's rules.
func Role(r *rbacv1.Role) field.ErrorList {
	p := &problems{}
	p.rules(r.Rules, true)
	return p.list
}

// ClusterRole checks a cluster role.
func ClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	p := &problems{}
	p.rules(r.Rules, false)
	if a := r.AggregationRule; a != nil {
		at := field.NewPath("aggregationRule", "clusterRoleSelectors")
		if len(a.ClusterRoleSelectors) == 0 {
			p.required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")
		}
		for i := range a.ClusterRoleSelectors {
			at := at.Index(i)
			p.addAll(metavalidation.ValidateLabelSelector(&a.ClusterRoleSelectors[i], metavalidation.LabelSelectorValidationOptions{}, at))
		}
	}
	return p.list
}

func (p *problems) rules(rules []rbacv1.PolicyRule, namespaced bool) {
	for i := range rules {
		r, at := &rules[i], field.NewPath("rules").Index(i)
		if len(r.Verbs) == 0 {
			p.required(at.Child("verbs"), "verbs must contain at least one value")
		}
		if len(r.NonResourceURLs) > 0 {
			urls := at.Child("nonResourceURLs")
			if namespaced {
				p.invalid(urls, r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs")
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				p.invalid(urls, r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs")
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			p.required(at.Child("apiGroups"), "resource rules must supply at least one api group")
		}
		if len(r.Resources) == 0 {
			p.required(at.Child("resources"), "resource rules must supply at least one resource")
		}
	}
}

// RoleBinding checks a role binding.
func RoleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	p := &problems{}
	p.roleRef(b.RoleRef, "ClusterRole", "Role")
	p.subjects(b.Subjects, true)
	return p.list
}

// RoleBindingUpdate checks a role binding that replaces old. Its role cannot change.
func RoleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	p := &problems{list: RoleBinding(b)}
	p.sameRole(b.RoleRef, old.RoleRef)
	return p.list
}

// ClusterRoleBinding checks a cluster role binding.
func ClusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	p := &problems{}
	p.roleRef(b.RoleRef, "ClusterRole")
	p.subjects(b.Subjects, false)
	return p.list
}

// ClusterRoleBindingUpdate checks a cluster role binding that replaces old.
func ClusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	p := &problems{list: ClusterRoleBinding(b)}
	p.sameRole(b.RoleRef, old.RoleRef)
	return p.list
}

func (p *problems) sameRole(is, was rbacv1.RoleRef) {
	if is != was {
		p.invalid(field.NewPath("roleRef"), is, "cannot change roleRef")
	}
}

func (p *problems) roleRef(r rbacv1.RoleRef, kinds ...string) {
	at := field.NewPath("roleRef")
	oneOf(p, at.Child("apiGroup"), r.APIGroup, rbacv1.GroupName)
	oneOf(p, at.Child("kind"), r.Kind, kinds...)
	if p.present(at.Child("name"), r.Name) {
		matches(p, at.Child("name"), r.Name, content.IsPathSegmentName(r.Name))
	}
}

func (p *problems) subjects(list []rbacv1.Subject, namespaced bool) {
	for i, s := range list {
		at := field.NewPath("subjects").Index(i)
		p.present(at.Child("name"), s.Name)
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				matches(p, at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))
			}
			if s.APIGroup != "" {
				p.add(field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			if !namespaced {
				p.present(at.Child("namespace"), s.Namespace)
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			oneOf(p, at.Child("apiGroup"), s.APIGroup, rbacv1.GroupName)
		default:
			p.add(field.NotSupported(at.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
}
