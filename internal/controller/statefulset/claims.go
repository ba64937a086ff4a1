package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var podKind = v1.SchemeGroupVersion.WithKind("Pod")

// claimName returns the name of the claim that a pod has by a template.
func claimName(set *appsv1.StatefulSet, template *v1.PersistentVolumeClaim, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template.Name, set.Name, ordinal)
}

// newClaim returns the claim of a new pod by a template.
func newClaim(set *appsv1.StatefulSet, template *v1.PersistentVolumeClaim, ordinal int) *v1.PersistentVolumeClaim {
	c := template.DeepCopy()
	c.Name, c.Namespace = claimName(set, template, ordinal), set.Namespace
	c.Labels = maps.Clone(c.Labels)
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
	if bySet, _ := keepers(set, ordinal); bySet {
		c.OwnerReferences = append(c.OwnerReferences, *metav1.NewControllerRef(set, kind))
	}
	return c
}

func deletes(p appsv1.PersistentVolumeClaimRetentionPolicyType) bool {
	return p == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

func retention(set *appsv1.StatefulSet) (whenDeleted, whenScaled bool) {
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	if p == nil {
		return false, false
	}
	return deletes(p.WhenDeleted), deletes(p.WhenScaled)
}

// keepers returns whether a pod's claims should go with the set, and whether they should go with the
// pod: the garbage collector deletes them by their owner references.
func keepers(set *appsv1.StatefulSet, ordinal int) (bySet, byPod bool) {
	whenDeleted, whenScaled := retention(set)
	goes := whenScaled && !wanted(set, ordinal)
	return whenDeleted && !goes, goes
}

// refers reports whether a reference names the object, be it that one or an earlier one of its name.
func refers(r metav1.OwnerReference, o metav1.Object, k schema.GroupVersionKind) bool {
	return r.Kind == k.Kind && r.APIVersion == k.GroupVersion().String() && r.Name == o.GetName()
}

// owners returns which owner references a claim should have, whether they are others than it has, and
// whether a stranger controls it, so that it is left alone.
func owners(c *v1.PersistentVolumeClaim, set *appsv1.StatefulSet, p *v1.Pod, ordinal int,
) (refs []metav1.OwnerReference, changed, conflict bool) {
	if staleRef(c, set, kind) || staleRef(c, p, podKind) {
		return c.OwnerReferences, false, false // the garbage collector will decide
	}
	ours := func(r metav1.OwnerReference) bool { return refers(r, set, kind) || refers(r, p, podKind) }
	refs = slices.DeleteFunc(slices.Clone(c.OwnerReferences), ours)
	whenDeleted, whenScaled := retention(set)
	if (whenDeleted || whenScaled) && slices.ContainsFunc(refs, controls) {
		return refs, len(refs) != len(c.OwnerReferences), true
	}
	bySet, byPod := keepers(set, ordinal)
	if bySet {
		refs = append(refs, *metav1.NewControllerRef(set, kind))
	}
	if byPod {
		refs = append(refs, *metav1.NewControllerRef(p, podKind))
	}
	return refs, controlledBy(c, set) != bySet || controlledBy(c, p) != byPod || len(refs) != len(c.OwnerReferences), false
}

func controls(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }

func controlledBy(c *v1.PersistentVolumeClaim, o metav1.Object) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == o.GetUID() && controls(r) })
}

// staleRef reports whether the claim belonged to an earlier object of this name.
func staleRef(c *v1.PersistentVolumeClaim, o metav1.Object, k schema.GroupVersionKind) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return refers(r, o, k) && r.UID != o.GetUID() })
}

// stale reports whether a claim of a pod that has yet to be made belongs to an earlier pod of its
// name, with which it will go.
func (f facts) stale(p *v1.Pod, ordinal int) bool {
	if _, whenScaled := retention(f.set); !whenScaled {
		return false
	}
	for i := range f.set.Spec.VolumeClaimTemplates {
		c := f.claim(claimName(f.set, &f.set.Spec.VolumeClaimTemplates[i], ordinal))
		if c != nil && staleRef(c, p, podKind) {
			return true
		}
	}
	return false
}

// claimsFor adds to a step the claims that a pod lacks, and those whose owners are to change. It
// reports whether there are any.
func (f facts) claimsFor(s *step, p *v1.Pod, ordinal int, missing bool) bool {
	for i := range f.set.Spec.VolumeClaimTemplates {
		t := &f.set.Spec.VolumeClaimTemplates[i]
		c := f.claim(claimName(f.set, t, ordinal))
		if c == nil {
			if missing {
				s.newClaims = append(s.newClaims, newClaim(f.set, t, ordinal))
			}
			continue
		}
		if missing && c.DeletionTimestamp != nil {
			s.refused = append(s.refused, fmt.Errorf("pvc %s is being deleted", c.Name))
		}
		refs, changed, conflict := owners(c, f.set, p, ordinal)
		if conflict && (changed || s.create != nil) {
			s.conflicts = append(s.conflicts, c.Name)
		}
		if changed {
			c = c.DeepCopy()
			c.OwnerReferences = refs
			s.ownClaims = append(s.ownClaims, c)
		}
	}
	return len(s.newClaims)+len(s.ownClaims)+len(s.refused) > 0
}

// mayHave reports whether a claim has the name that one of the set's has.
func mayHave(set *appsv1.StatefulSet, name string) bool {
	return slices.ContainsFunc(set.Spec.VolumeClaimTemplates, func(t v1.PersistentVolumeClaim) bool {
		pod, ok := strings.CutPrefix(name, t.Name+"-")
		_, member := ordinalOf(set, pod)
		return ok && member
	})
}
