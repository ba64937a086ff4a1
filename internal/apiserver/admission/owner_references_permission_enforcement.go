package admission

import (
	"context"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ownerReferencesPermissionEnforcement keeps users from having the garbage collector delete what they
// could not delete themselves, and from holding up the deletion of owners that are not theirs.
type ownerReferencesPermissionEnforcement struct {
	may   authorizer.Authorizer
	kinds meta.RESTMapper
}

var _ admission.ValidationInterface = (*ownerReferencesPermissionEnforcement)(nil)

func (*ownerReferencesPermissionEnforcement) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *ownerReferencesPermissionEnforcement) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	// A pod's status cannot change its owners, and old kubelets send them wrong.
	if a.GetResource().GroupResource() == podsResource && a.GetSubresource() == "status" {
		return nil
	}
	refs, ok := ownersOf(a.GetObject())
	old, _ := ownersOf(a.GetOldObject())
	if !ok || len(refs) == len(old) && (len(refs) == 0 || apiequality.Semantic.DeepEqual(refs, old)) {
		return nil
	}
	// Who creates an object may give it owners: it need not exist at all.
	if a.GetOperation() != admission.Create {
		r := a.GetResource()
		ask := authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: "delete", Namespace: a.GetNamespace(), APIGroup: r.Group, APIVersion: r.Version,
			Resource: r.Resource, Subresource: a.GetSubresource(), Name: a.GetName(), ResourceRequest: true,
		}
		if decision, reason, err := p.may.Authorize(ctx, ask); decision != authorizer.DecisionAllow {
			return forbid(a, "cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err)
		}
	}
	return p.mayBlock(ctx, a, newlyBlocking(refs, old))
}

// ownersOf returns an object's owners, and whether it is one that can have some.
func ownersOf(obj runtime.Object) ([]metav1.OwnerReference, bool) {
	if obj == nil {
		return nil, false
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, false
	}
	return m.GetOwnerReferences(), true
}

// newlyBlocking returns the owners that cannot be deleted in the foreground before the object is, and
// could before.
func newlyBlocking(refs, old []metav1.OwnerReference) []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for _, ref := range refs {
		was := slices.ContainsFunc(old, func(o metav1.OwnerReference) bool { return o.UID == ref.UID && blocks(o) })
		if blocks(ref) && !was {
			out = append(out, ref)
		}
	}
	return out
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// mayBlock returns an error if the user may not put finalizers on one of the owners.
func (p *ownerReferencesPermissionEnforcement) mayBlock(ctx context.Context, a admission.Attributes, refs []metav1.OwnerReference) error {
	if len(refs) == 0 {
		return nil
	}
	finalize := func(r schema.GroupVersionResource, namespace, name string) (authorizer.Decision, string, error) {
		return p.may.Authorize(ctx, authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: "update", Namespace: namespace, APIGroup: r.Group, APIVersion: r.Version,
			Resource: r.Resource, Subresource: "finalizers", Name: name, ResourceRequest: true,
		})
	}
	// Whoever may do it with everything may do it with kinds that nobody knows.
	if decision, _, _ := finalize(schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}, "", "*"); decision == authorizer.DecisionAllow {
		return nil
	}
	for _, ref := range refs {
		mappings, err := p.resourcesOf(ref)
		if err != nil {
			return forbid(a, "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w",
				ref.APIVersion, ref.Kind, err)
		}
		for _, m := range mappings {
			namespace := ""
			if m.Scope.Name() == meta.RESTScopeNameNamespace {
				namespace = a.GetNamespace()
			}
			if decision, reason, err := finalize(m.Resource, namespace, ref.Name); decision != authorizer.DecisionAllow {
				return forbid(a, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err)
			}
		}
	}
	return nil
}

// resourcesOf returns the resources that an owner may be of.
func (p *ownerReferencesPermissionEnforcement) resourcesOf(ref metav1.OwnerReference) ([]*meta.RESTMapping, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	return p.kinds.RESTMappings(gv.WithKind(ref.Kind).GroupKind(), gv.Version)
}
