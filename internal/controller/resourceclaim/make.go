package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// fieldManager is upstream's name for who writes the names of claims into pods and pod groups.
const fieldManager = "ResourceClaimController"

// owner is a pod or a pod group, as somebody for whom claims are made from templates.
type owner struct {
	meta       metav1.Object
	object     runtime.Object
	apiVersion string
	group      string // of the API
	kind       string
	// What was written on its behalf, and the patch of its status.
	made, named *written.Log
	patch       func(ctx context.Context, name string, patch []byte) (metav1.Object, error)
}

func (c *Controller) ofPod(pod *v1.Pod) owner {
	return owner{
		meta: pod, object: pod, apiVersion: "v1", kind: "Pod", made: c.made, named: c.named,
		patch: func(ctx context.Context, name string, patch []byte) (metav1.Object, error) {
			return c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{FieldManager: fieldManager}, "status")
		},
	}
}

func (c *Controller) ofGroup(g *schedulingv1beta1.PodGroup) owner {
	return owner{
		meta: g, object: g, apiVersion: schedulingv1beta1.SchemeGroupVersion.String(), group: schedulingv1beta1.GroupName, kind: "PodGroup",
		made: c.madeForGroups, named: c.namedInGroups,
		patch: func(ctx context.Context, name string, patch []byte) (metav1.Object, error) {
			return c.client.SchedulingV1beta1().PodGroups(g.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{FieldManager: fieldManager}, "status")
		},
	}
}

// missing is a claim that is to be made from a template. named is what the owner's status has for it; "" if it has nothing.
type missing struct{ name, template, named string }

// making is what the claims need that are made from templates for an owner.
type making struct {
	make []missing
	// names are the claims that were made, by what they are called there; the status lacks one of them if write is set.
	names map[string]string
	write bool
}

// find notes a claim that an owner wants made from a template, and returns it; nil if there is none yet. its is the one
// that the owner's status names, if that can be used; owned are those that were made for the owner.
func (m *making) find(want missing, its *resourcev1.ResourceClaim, owned []*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	if its == nil {
		// One that was made, and whose name could not be written.
		its = madeAs(want.name, owned)
		m.write = m.write || its != nil
	}
	if its != nil {
		m.names[want.name] = its.Name
	}
	return its
}

// madeAs returns the claim that was made for the one that its owner calls so, or nil.
func madeAs(name string, owned []*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	for _, c := range owned {
		if c.Annotations[resourcev1.PodResourceClaimAnnotation] == name && c.DeletionTimestamp == nil {
			return c
		}
	}
	return nil
}

// carryOut makes what claims it can, and writes the names of all that there are: if one cannot be made, the others are
// not made again.
func (c *Controller) carryOut(ctx context.Context, o owner, m making) error {
	var errs []error
	for _, want := range m.make {
		its, err := c.create(ctx, o, want)
		if err != nil {
			err = fmt.Errorf("%sResourceClaim %s: %w", o.kind, want.name, err)
			if !errors.Is(err, controller.ErrBehind) {
				c.events.Event(o.object, v1.EventTypeWarning, "FailedResourceClaimCreation", err.Error())
			}
			if !errors.Is(err, errNoTemplate) {
				errs = append(errs, err)
			}
			continue
		}
		m.names[want.name], m.write = its.Name, true
	}
	if m.write {
		errs = append(errs, c.writeNames(ctx, o, m.names))
	}
	return errors.Join(errs...)
}

// errNoTemplate is no reason to try again: the template wakes those who want it when it comes.
var errNoTemplate = errors.New("not found")

// create makes the claim from its template.
func (c *Controller) create(ctx context.Context, o owner, want missing) (*resourcev1.ResourceClaim, error) {
	if err := c.reallyMissing(ctx, o, want.named); err != nil {
		return nil, err
	}
	namespace := o.meta.GetNamespace()
	template, err := c.templates.ResourceClaimTemplates(namespace).Get(want.template)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", want.template, errNoTemplate)
	}
	its := newClaim(o, want.name, template)
	answer, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, its, metav1.CreateOptions{})
	countCreation(its, o, err)
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim %s: %w", its.GenerateName, err)
	}
	o.made.Wrote(keyOf(o.meta), answer)
	logOf(ctx, answer).V(4).Info("Made a claim from a template", "for", o.kind, "name", o.meta.GetName())
	return answer, nil
}

// reallyMissing returns an error if there is a claim of that name for the owner, and the informer does not know it: it
// may be older than the owner's status, when the controller starts.
func (c *Controller) reallyMissing(ctx context.Context, o owner, name string) error {
	if name == "" {
		return nil
	}
	its, err := c.client.ResourceV1().ResourceClaims(o.meta.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !metav1.IsControlledBy(its, o.meta) {
		return nil
	}
	return fmt.Errorf("claim %s: %w", keyOf(its), controller.ErrBehind)
}

// newClaim returns the claim that its owner calls name.
func newClaim(o owner, name string, template *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = name
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: generateName(o.meta.GetName(), name), Annotations: annotations, Labels: maps.Clone(template.Spec.Labels),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: o.apiVersion, Kind: o.kind, Name: o.meta.GetName(), UID: o.meta.GetUID(), Controller: new(true),
			}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// generateName returns OWNER-CLAIM-, with room for five more characters. If that is too long, both parts lose the same
// share, so that something of the second one is left.
func generateName(owner, name string) string {
	const longest = 57
	out := owner + "-" + name + "-"
	if n := len(out); n > longest {
		out = owner[:len(owner)*longest/n] + "-" + name[:len(name)*longest/n]
	}
	return out
}

// writeNames writes the names of the claims that were made into the owner's status.
func (c *Controller) writeNames(ctx context.Context, o owner, names map[string]string) error {
	var statuses []map[string]string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		statuses = append(statuses, map[string]string{"name": name, "resourceClaimName": names[name]})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.meta.GetUID()}, "status": map[string]any{"resourceClaimStatuses": statuses},
	})
	if err != nil {
		return err
	}
	answer, err := o.patch(ctx, o.meta.GetName(), patch)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another one has the name now
	}
	if err != nil {
		return fmt.Errorf("update %s %s ResourceClaimStatuses: %w", o.kind, keyOf(o.meta), err)
	}
	o.named.Wrote(keyOf(o.meta), answer)
	return nil
}
