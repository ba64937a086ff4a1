// Package resourceclaim sees to claims for devices on behalf of pods: it makes those that pods want to have made from
// templates, and lets go of those that pods have done with (KEP-4381).
//
// The loop of pods makes claims, and writes their names into the status of the pod; that of pod groups, where they are
// served, does so for groups. The loop of claims removes reservations of pods that are over, and of groups that are gone;
// a claim that loses its last one gives up its devices, for others to have, and one that was made for a pod that is over
// is deleted. What is to be done is for pure functions to say (plan, planGroup, settle).
package resourceclaim

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

// Indices of pods: by the claims that they use, by the templates from which claims are made for them, by their groups.
// Groups have one by their templates, too.
const (
	byClaim    = "wherry/resourceclaim"
	byTemplate = "wherry/resourceclaimtemplate"
	byGroup    = "wherry/resourceclaimpodgroup"
)

// Controller serves pods, pod groups and their claims. Create one with New.
type Controller struct {
	client       clientset.Interface
	pods, claims *controller.Loop
	podIndex     cache.Indexer
	claimIndex   cache.Indexer
	podLister    corelisters.PodLister
	claimLister  resourcelisters.ResourceClaimLister
	templates    resourcelisters.ResourceClaimTemplateLister
	events       record.EventRecorder

	// What was written on behalf of a pod, by its key: its claims, and its status.
	made, named *written.Log

	// What there is of pod groups; nil where they are not served.
	groups                       *controller.Loop
	groupIndex                   cache.Indexer
	groupLister                  schedulinglisters.PodGroupLister
	madeForGroups, namedInGroups *written.Log
}

// New returns the controller, with the informers of f. grouped says that the API server has pod groups.
func New(client clientset.Interface, f informers.SharedInformerFactory, grouped bool) (*Controller, error) {
	pods, claims := f.Core().V1().Pods(), f.Resource().V1().ResourceClaims()
	templates := f.Resource().V1().ResourceClaimTemplates()
	err := errors.Join(claim.AddIndex(claims.Informer()), pods.Informer().AddIndexers(cache.Indexers{
		byClaim: controller.IndexBy(usedClaims), byTemplate: controller.IndexBy(templatesOf),
		byGroup: controller.IndexBy(controller.GroupOf),
	}))
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, podIndex: pods.Informer().GetIndexer(), claimIndex: claims.Informer().GetIndexer(),
		podLister: pods.Lister(), claimLister: claims.Lister(), templates: templates.Lister(),
		made: written.New(claims.Informer().GetIndexer()), named: written.New(pods.Informer().GetIndexer()),
	}
	c.pods = controller.NewLoop("resource_claim_pods", c.syncPod)
	c.pods.WaitFor(c.made, c.named)
	c.claims = controller.NewLoop("resource_claim", c.syncClaim)
	register(c.claimLister)
	if grouped {
		if err := c.watchGroups(f); err != nil {
			return nil, err
		}
	}
	// Either loop needs what the other one watches to be there.
	return c, errors.Join(
		c.pods.Watch(pods.Informer(), c.podChanged), c.pods.Watch(claims.Informer(), c.claimChanged),
		c.pods.Watch(templates.Informer(), c.templateChanged),
		c.claims.Watch(pods.Informer(), c.podLetsGo), c.claims.Watch(claims.Informer(), c.claims.AddObject),
	)
}

// Run serves until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "resource_claim")
	defer stop()
	c.events = events
	others := []*controller.Loop{c.claims}
	if c.groups != nil {
		others = append(others, c.groups)
	}
	ended := make(chan error, len(others))
	for _, l := range others {
		go func() { ended <- l.Run(ctx) }()
	}
	errs := []error{c.pods.Run(ctx)}
	for range others {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// usedClaims returns the keys of the claims that a pod uses, as far as they have names.
func usedClaims(pod *v1.Pod) []string {
	var keys []string
	for name := range resourceclaim.PodClaims(pod) {
		keys = append(keys, pod.Namespace+"/"+name)
	}
	return keys
}

func templatesOf(pod *v1.Pod) []string {
	var keys []string
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			keys = append(keys, pod.Namespace+"/"+*name)
		}
	}
	return keys
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// podChanged wakes a pod that has claims.
func (c *Controller) podChanged(_, obj any) {
	if pod, ok := obj.(*v1.Pod); ok && len(pod.Spec.ResourceClaims) > 0 {
		c.pods.Add(keyOf(pod))
	}
}

// claimChanged wakes the pods that use a claim, and the one for which it was made.
func (c *Controller) claimChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		its, ok := o.(*resourcev1.ResourceClaim)
		if !ok {
			continue
		}
		c.wakePods(byClaim, keyOf(its))
		if owner := podOf(its); owner != nil {
			c.pods.Add(its.Namespace + "/" + owner.Name)
		}
	}
}

// templateChanged wakes the pods that wait for a template.
func (c *Controller) templateChanged(old, obj any) {
	if t, ok := obj.(*resourcev1.ResourceClaimTemplate); ok && old == nil {
		c.wakePods(byTemplate, keyOf(t))
	}
}

func (c *Controller) wakePods(by, key string) {
	items, err := c.podIndex.ByIndex(by, key)
	if err != nil {
		return // the index exists
	}
	for _, item := range items {
		c.podChanged(nil, item)
	}
}

// podLetsGo wakes the claims of a pod that is over, or gone.
func (c *Controller) podLetsGo(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	for _, pod := range []*v1.Pod{was, is} {
		if pod == nil || is != nil && is.UID == pod.UID && !over(is) {
			continue
		}
		for _, key := range usedClaims(pod) {
			c.claims.Add(key)
		}
		// The scheduler may have made one that the pod's status does not name.
		made, err := claim.Controlled[*resourcev1.ResourceClaim](c.claimIndex, pod.UID)
		if err != nil {
			continue // the index exists
		}
		for _, its := range made {
			c.claims.Add(keyOf(its))
		}
	}
}

// podOf returns the reference to the pod for which a claim was made, or nil.
func podOf(its *resourcev1.ResourceClaim) *metav1.OwnerReference {
	if ref := metav1.GetControllerOfNoCopy(its); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return ref
	}
	return nil
}

func logOf(ctx context.Context, o metav1.Object) klog.Logger {
	return klog.FromContext(ctx).WithValues("object", klog.KRef(o.GetNamespace(), o.GetName()))
}
