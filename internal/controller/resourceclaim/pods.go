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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
)

// fieldManager is upstream's name for who writes the names of claims into pods.
const fieldManager = "ResourceClaimController"

// podPlan is what a pod's claims need.
type podPlan struct {
	make []missing // to be made from templates
	// names are the claims that were made for the pod, by what they are called in it; the status lacks one of them if
	// write is set.
	names map[string]string
	write bool
	// reserve are allocated claims of a pod that has a node without their being reserved for it: somebody else than the
	// scheduler has bound it.
	reserve []*resourcev1.ResourceClaim
}

// missing is a claim that is to be made. named is what the pod's status has for it; "" if it has nothing.
type missing struct {
	*v1.PodResourceClaim
	named string
}

// plan returns what is to be done for a pod. named returns a claim of the namespace by its name, or nil; owned are those
// that were made for the pod.
func plan(pod *v1.Pod, named func(string) *resourcev1.ResourceClaim, owned []*resourcev1.ResourceClaim) podPlan {
	p := podPlan{names: map[string]string{}}
	if pod.DeletionTimestamp != nil || pods.IsTerminal(pod.Status.Phase) {
		return p
	}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, made, err := resourceclaim.Name(pod, ref)
		if err == nil && name == nil {
			continue // it turned out that none is needed
		}
		var its *resourcev1.ResourceClaim
		if err == nil {
			if its = named(*name); its != nil && made && resourceclaim.IsForPod(pod, its, false) != nil {
				its = nil // somebody else's, after the pod's own was deleted
			}
		}
		if ref.ResourceClaimTemplateName != nil {
			if its == nil {
				// One that was made, and whose name could not be written.
				its = madeAs(ref.Name, owned)
				p.write = p.write || its != nil
			}
			if its == nil {
				p.make = append(p.make, missing{ref, ptr.Deref(name, "")})
				continue
			}
			p.names[ref.Name] = its.Name
		}
		if its != nil && pod.Spec.NodeName != "" && its.Status.Allocation != nil &&
			!resourceclaim.IsReservedForPod(pod, its, false) && its.DeletionTimestamp == nil {
			p.reserve = append(p.reserve, its)
		}
	}
	return p
}

// madeAs returns the claim that was made for the one that the pod calls so, or nil.
func madeAs(name string, owned []*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	for _, c := range owned {
		if c.Annotations[resourcev1.PodResourceClaimAnnotation] == name && c.DeletionTimestamp == nil {
			return c
		}
	}
	return nil
}

func (c *Controller) syncPod(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := c.podLister.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	owned, err := claim.Controlled[*resourcev1.ResourceClaim](c.claimIndex, pod.UID)
	if err != nil {
		return err
	}
	named := func(name string) *resourcev1.ResourceClaim {
		its, err := c.claimLister.ResourceClaims(namespace).Get(name)
		if err != nil {
			return nil // a lister knows no other error than that there is none
		}
		return its
	}
	return c.carryOut(ctx, pod, plan(pod, named, owned))
}

// carryOut makes what claims it can, and writes the names of all that there are: if one cannot be made, the others are
// not made again.
func (c *Controller) carryOut(ctx context.Context, pod *v1.Pod, p podPlan) error {
	var errs []error
	for i := range p.make {
		its, err := c.create(ctx, pod, p.make[i])
		if err != nil {
			err = fmt.Errorf("PodResourceClaim %s: %w", p.make[i].Name, err)
			if !errors.Is(err, controller.ErrBehind) {
				c.events.Event(pod, v1.EventTypeWarning, "FailedResourceClaimCreation", err.Error())
			}
			if !errors.Is(err, errNoTemplate) {
				errs = append(errs, err)
			}
			continue
		}
		p.names[p.make[i].Name], p.write = its.Name, true
	}
	if p.write {
		errs = append(errs, c.writeNames(ctx, pod, p.names))
	}
	for _, its := range p.reserve {
		errs = append(errs, c.reserve(ctx, pod, its))
	}
	return errors.Join(errs...)
}

// errNoTemplate is no reason to try again: the template wakes the pod when it comes.
var errNoTemplate = errors.New("not found")

// create makes the claim from its template.
func (c *Controller) create(ctx context.Context, pod *v1.Pod, ref missing) (*resourcev1.ResourceClaim, error) {
	if err := c.reallyMissing(ctx, pod, ref.named); err != nil {
		return nil, err
	}
	name := *ref.ResourceClaimTemplateName
	template, err := c.templates.ResourceClaimTemplates(pod.Namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", name, errNoTemplate)
	}
	its := newClaim(pod, ref.Name, template)
	answer, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, its, metav1.CreateOptions{})
	countCreation(its, err)
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim %s: %w", its.GenerateName, err)
	}
	c.made.Wrote(keyOf(pod), answer)
	logOf(ctx, answer).V(4).Info("Made a claim from a template", "pod", pod.Name)
	return answer, nil
}

// reallyMissing returns an error if there is a claim of that name for the pod, and the informer does not know it: it
// may be older than the pod's status, when the controller starts.
func (c *Controller) reallyMissing(ctx context.Context, pod *v1.Pod, name string) error {
	if name == "" {
		return nil
	}
	its, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if own := resourceclaim.IsForPod(pod, its, false) == nil; !own {
		return nil
	}
	return fmt.Errorf("claim %s: %w", keyOf(its), controller.ErrBehind)
}

// newClaim returns the claim that a pod calls name.
func newClaim(pod *v1.Pod, name string, template *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = name
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: generateName(pod.Name, name), Annotations: annotations, Labels: maps.Clone(template.Spec.Labels),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true),
			}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// generateName returns POD-CLAIM-, with room for five more characters. If that is too long, both parts lose the same
// share, so that something of the second one is left.
func generateName(pod, name string) string {
	const longest = 57
	out := pod + "-" + name + "-"
	if n := len(out); n > longest {
		out = pod[:len(pod)*longest/n] + "-" + name[:len(name)*longest/n]
	}
	return out
}

// writeNames writes the names of the claims that were made for the pod into its status.
func (c *Controller) writeNames(ctx context.Context, pod *v1.Pod, names map[string]string) error {
	var statuses []map[string]string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		statuses = append(statuses, map[string]string{"name": name, "resourceClaimName": names[name]})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"resourceClaimStatuses": statuses},
	})
	if err != nil {
		return err
	}
	answer, err := c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another pod has the name now
	}
	if err != nil {
		return fmt.Errorf("update pod %s ResourceClaimStatuses: %w", keyOf(pod), err)
	}
	c.named.Wrote(keyOf(pod), answer)
	return nil
}

func (c *Controller) reserve(ctx context.Context, pod *v1.Pod, its *resourcev1.ResourceClaim) error {
	its = its.DeepCopy()
	its.Status.ReservedFor = append(its.Status.ReservedFor,
		resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	answer, err := c.client.ResourceV1().ResourceClaims(its.Namespace).UpdateStatus(ctx, its, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("reserve claim %s: %w", keyOf(its), err)
	}
	c.made.Wrote(keyOf(pod), answer)
	return nil
}
