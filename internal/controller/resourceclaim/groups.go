package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// The pods of a group may have claims in common (KEP-5729): one that the group names, or one that is made for it from a
// template. Such a claim is reserved for the group, and stays so until that is gone and none of its pods uses it.

// watchGroups has the controller serve pod groups, too.
func (c *Controller) watchGroups(f informers.SharedInformerFactory) error {
	all := f.Scheduling().V1beta1().PodGroups()
	if err := all.Informer().AddIndexers(cache.Indexers{byTemplate: controller.IndexBy(templatesOfGroup)}); err != nil {
		return err
	}
	c.groupLister, c.groupIndex = all.Lister(), all.Informer().GetIndexer()
	c.madeForGroups, c.namedInGroups = written.New(c.claimIndex), written.New(c.groupIndex)
	c.groups = controller.NewLoop("resource_claim_pod_groups", c.syncGroup)
	c.groups.WaitFor(c.madeForGroups, c.namedInGroups)
	claims, templates := f.Resource().V1().ResourceClaims().Informer(), f.Resource().V1().ResourceClaimTemplates().Informer()
	return errors.Join(
		c.groups.Watch(all.Informer(), c.groupChanged), c.groups.Watch(claims, c.madeForGroup),
		c.groups.Watch(templates, c.templateOfGroups),
		c.pods.Watch(all.Informer(), c.groupComes), c.claims.Watch(all.Informer(), c.groupLetsGo),
	)
}

// planGroup returns what is to be done for a pod group.
func planGroup(g *schedulingv1beta1.PodGroup, there around) making {
	m := making{names: map[string]string{}}
	if g.DeletionTimestamp != nil {
		return m
	}
	for i := range g.Spec.ResourceClaims {
		ref := &g.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.NameFromPodGroup(g, ref)
		if ref.ResourceClaimTemplateName == nil || err == nil && name == nil {
			continue // somebody else's, or it turned out that none is needed
		}
		its := there.usable(name, func(its *resourcev1.ResourceClaim) error { return resourceclaim.IsForPodGroup(g, its) })
		want := missing{ref.Name, *ref.ResourceClaimTemplateName, ptr.Deref(name, "")}
		if m.find(want, its, there.owned(g.UID)) == nil {
			m.make = append(m.make, want)
		}
	}
	return m
}

func (c *Controller) syncGroup(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	g, err := controller.Found(c.groupLister.PodGroups(namespace).Get(name))
	if g == nil {
		return err
	}
	return c.carryOut(ctx, c.ofGroup(g), planGroup(g, c.around(namespace)))
}

// groupOf returns the pod's group; nil if it has none, and where there are no groups. It is not known if it does not
// exist yet.
func (c *Controller) groupOf(pod *v1.Pod) (g *schedulingv1beta1.PodGroup, known bool) {
	name, ok := pods.Group(pod)
	if !ok || c.groupLister == nil {
		return nil, true
	}
	g, err := c.groupLister.PodGroups(name.Namespace).Get(name.Name)
	return g, err == nil
}

func templatesOfGroup(g *schedulingv1beta1.PodGroup) []string {
	var keys []string
	for i := range g.Spec.ResourceClaims {
		if name := g.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			keys = append(keys, g.Namespace+"/"+*name)
		}
	}
	return keys
}

// usedByGroup returns the keys of the claims of a group, as far as they have names.
func usedByGroup(g *schedulingv1beta1.PodGroup) []string {
	var keys []string
	for i := range g.Spec.ResourceClaims {
		if name, _, err := resourceclaim.NameFromPodGroup(g, &g.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, g.Namespace+"/"+*name)
		}
	}
	return keys
}

// groupChanged wakes a group that has claims.
func (c *Controller) groupChanged(_, obj any) {
	if g, ok := obj.(*schedulingv1beta1.PodGroup); ok && len(g.Spec.ResourceClaims) > 0 {
		c.groups.Add(keyOf(g))
	}
}

// groupComes wakes the pods that wait for their group.
func (c *Controller) groupComes(old, obj any) {
	if g, ok := obj.(*schedulingv1beta1.PodGroup); ok && old == nil {
		c.wakePods(byGroup, keyOf(g))
	}
}

// groupLetsGo wakes the claims of a group that is gone.
func (c *Controller) groupLetsGo(old, obj any) {
	was, _ := old.(*schedulingv1beta1.PodGroup)
	is, _ := obj.(*schedulingv1beta1.PodGroup)
	if was == nil || is != nil && is.UID == was.UID {
		return
	}
	for _, key := range usedByGroup(was) {
		c.claims.Add(key)
	}
}

// madeForGroup wakes the group for which a claim was made, and the pods that get it from there.
func (c *Controller) madeForGroup(old, obj any) {
	for _, o := range []any{old, obj} {
		its, ok := o.(*resourcev1.ResourceClaim)
		if !ok {
			continue
		}
		ref := metav1.GetControllerOfNoCopy(its)
		if ref == nil || ref.Kind != "PodGroup" {
			continue
		}
		if gv, err := schema.ParseGroupVersion(ref.APIVersion); err == nil && gv.Group == schedulingv1beta1.GroupName {
			key := its.Namespace + "/" + ref.Name
			c.groups.Add(key)
			c.wakePods(byGroup, key)
		}
	}
}

// templateOfGroups wakes the groups that wait for a template.
func (c *Controller) templateOfGroups(old, obj any) {
	t, ok := obj.(*resourcev1.ResourceClaimTemplate)
	if !ok || old != nil {
		return
	}
	groups, err := controller.LookUp[*schedulingv1beta1.PodGroup](c.groupIndex, byTemplate, keyOf(t))
	if err != nil {
		return // the index exists
	}
	for _, g := range groups {
		c.groups.Add(keyOf(g))
	}
}

// groupGone reports whether a group for which a claim is reserved is gone, and none of its pods uses the claim any more.
// Those may have outlived it, if somebody has taken its finalizer away.
func (c *Controller) groupGone(ctx context.Context, its *resourcev1.ResourceClaim, r resourcev1.ResourceClaimConsumerReference) (bool, error) {
	if c.groupLister == nil {
		return false, nil // nobody here knows whether it is over
	}
	g, err := known(ctx, r.Name, c.groupLister.PodGroups(its.Namespace), c.client.SchedulingV1beta1().PodGroups(its.Namespace))
	if err != nil {
		return false, fmt.Errorf("look for pod group %s/%s, which uses a claim: %w", its.Namespace, r.Name, err)
	}
	if g != nil && g.UID == r.UID {
		return false, nil
	}
	users, err := controller.LookUp[*v1.Pod](c.podIndex, byClaim, keyOf(its))
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(users, func(pod *v1.Pod) bool {
		name, ok := pods.Group(pod)
		return ok && name.Name == r.Name && !over(pod)
	}), nil
}
