// Package namespace empties namespaces that are being deleted, and then lets them go.
//
// Pods go first, because what they use (service accounts, secrets, network policies) must outlive
// them (KEP-5080); then everything else; then the namespace's own finalizer. Conditions on the
// namespace say what still blocks its deletion.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/workqueue"

	"wherry.dev/internal/controller"
)

var podsGVR = v1.SchemeGroupVersion.WithResource("pods")

// Controller deletes the content of namespaces.
type Controller struct {
	client     clientset.Interface
	metadata   metadata.Interface
	namespaces corelisters.NamespaceLister
	loop       *controller.Loop
	// patience is how long a namespace has to wait until it is asked again what is left in it.
	patience workqueue.TypedRateLimiter[string]
	pods     map[string]int // by namespace; podChanged alone has to do with it
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, meta metadata.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	namespaces := f.Core().V1().Namespaces()
	c := &Controller{
		client: client, metadata: meta, namespaces: namespaces.Lister(),
		patience: workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 15*time.Second),
		pods:     map[string]int{},
	}
	c.loop = controller.NewLoop("namespace", c.reconcile)
	if err := c.loop.Watch(namespaces.Informer(), func(_, obj any) {
		if ns, ok := obj.(*v1.Namespace); ok && ns.DeletionTimestamp != nil {
			c.loop.Add(ns.Name)
		}
	}); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(f.Core().V1().Pods().Informer(), c.podChanged)
}

// podChanged looks at a namespace when its last pod is gone: it may have waited for that. To look after each
// of many would list those that are left again and again.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, _ := obj.(*v1.Pod)
	switch {
	case was == nil && pod != nil:
		c.pods[pod.Namespace]++
	case was != nil && pod == nil:
		if c.pods[was.Namespace]--; c.pods[was.Namespace] == 0 {
			delete(c.pods, was.Namespace)
			c.loop.Add(was.Namespace)
		}
	}
}

// Run empties namespaces until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	cached, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		c.patience.Forget(name)
		return nil
	}
	if err != nil {
		return err
	}
	if cached.DeletionTimestamp == nil || len(cached.Spec.Finalizers) == 0 {
		return nil
	}
	// The cache may be behind: a namespace of the same name may have been created since.
	ns, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || ns.DeletionTimestamp == nil {
		return err
	}
	left, err := c.empty(ctx, name)
	if cerr := c.report(ctx, ns, left, err); cerr != nil {
		return errors.Join(err, cerr)
	}
	if err != nil {
		return err
	}
	if !left.empty() {
		c.loop.AddAfter(name, c.recheck(name, left))
		return nil
	}
	c.patience.Forget(name)
	return c.finalize(ctx, name)
}

// remaining counts what is still in a namespace.
type remaining struct {
	resources  map[string]int // by resource.group
	finalizers map[string]int
	onlyPods   bool
}

func (r *remaining) empty() bool { return len(r.resources) == 0 }

// recheck returns after how long to look again. A watch tells when pods are gone; what else is left is
// asked for, ever more seldom.
func (c *Controller) recheck(name string, left remaining) time.Duration {
	if left.onlyPods {
		return 10 * time.Second
	}
	return c.patience.When(name)
}

// empty requests the deletion of everything, and counts what is left.
func (c *Controller) empty(ctx context.Context, namespace string) (remaining, error) {
	left := remaining{resources: map[string]int{}, finalizers: map[string]int{}}
	if err := c.deleteAll(ctx, podsGVR, namespace, &left); err != nil {
		return left, err
	}
	if !left.empty() {
		left.onlyPods = true
		return left, nil
	}
	resources, err := c.deletable()
	errs := []error{err}
	for _, gvr := range resources {
		errs = append(errs, c.deleteAll(ctx, gvr, namespace, &left))
	}
	return left, errors.Join(errs...)
}

// deletable returns the namespaced resources that can be listed and deleted.
func (c *Controller) deletable() ([]schema.GroupVersionResource, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(c.client.Discovery())
	if err != nil {
		err = fmt.Errorf("%w: %w", errDiscovery, err)
	}
	if err != nil && len(lists) == 0 {
		return nil, err
	}
	var out []schema.GroupVersionResource
	for _, l := range lists {
		gv, perr := schema.ParseGroupVersion(l.GroupVersion)
		if perr != nil {
			return nil, perr
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") && gv.WithResource(r.Name) != podsGVR {
				out = append(out, gv.WithResource(r.Name))
			}
		}
	}
	return out, err
}

// deleteAll requests the deletion of all objects of a resource, and counts those that are left. What
// cannot be deleted is in nobody's way; the error is one of theirs.
func (c *Controller) deleteAll(ctx context.Context, gvr schema.GroupVersionResource, namespace string, left *remaining) error {
	client := c.metadata.Resource(gvr).Namespace(namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s in namespace %s: %w", gvr.GroupResource(), namespace, err)
	}
	var failure error
	background := metav1.DeletePropagationBackground
	for i := range list.Items {
		o := &list.Items[i]
		if o.DeletionTimestamp == nil {
			err := client.Delete(ctx, o.Name, metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &o.UID}})
			if err != nil && !apierrors.IsNotFound(err) {
				failure = fmt.Errorf("delete %s %s/%s: %w", gvr.GroupResource(), namespace, o.Name, err)
			}
		}
	}
	if len(list.Items) == 0 {
		return nil
	}
	return errors.Join(failure, c.count(ctx, gvr, namespace, left))
}

// count lists the resource again, because most objects are gone as soon as they are deleted.
func (c *Controller) count(ctx context.Context, gvr schema.GroupVersionResource, namespace string, left *remaining) error {
	list, err := c.metadata.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s in namespace %s: %w", gvr.GroupResource(), namespace, err)
	}
	if n := len(list.Items); n > 0 {
		left.resources[strings.TrimSuffix(gvr.GroupResource().String(), ".")] += n
	}
	for i := range list.Items {
		for _, f := range list.Items[i].Finalizers {
			left.finalizers[f]++
		}
	}
	return nil
}

// report writes the conditions that tell users what blocks the deletion of the namespace.
func (c *Controller) report(ctx context.Context, ns *v1.Namespace, left remaining, failure error) error {
	want := conditions(left, failure)
	next := ns.DeepCopy()
	changed := false
	for _, w := range want {
		changed = setCondition(&next.Status, w) || changed
	}
	if !changed {
		return nil
	}
	_, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the conditions of namespace %s: %w", ns.Name, err)
	}
	return nil
}

func conditions(left remaining, failure error) []v1.NamespaceCondition {
	cond := func(t v1.NamespaceConditionType, bad bool, reason, msg, okReason, okMsg string) v1.NamespaceCondition {
		if bad {
			return v1.NamespaceCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: msg}
		}
		return v1.NamespaceCondition{Type: t, Status: v1.ConditionFalse, Reason: okReason, Message: okMsg}
	}
	var failed string
	if failure != nil {
		failed = failure.Error()
	}
	discovery := discoveryFailed(failure)
	return []v1.NamespaceCondition{
		cond(v1.NamespaceDeletionDiscoveryFailure, discovery, "DiscoveryFailed", failed,
			"ResourcesDiscovered", "All resources successfully discovered"),
		cond(v1.NamespaceDeletionGVParsingFailure, false, "", "",
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		cond(v1.NamespaceDeletionContentFailure, failure != nil && !discovery, "ContentDeletionFailed", failed,
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		cond(v1.NamespaceContentRemaining, len(left.resources) > 0, "SomeResourcesRemain",
			"Some resources are remaining: "+tally(left.resources, "%s has %d resource instances"),
			"ContentRemoved", "All content successfully removed"),
		cond(v1.NamespaceFinalizersRemaining, len(left.finalizers) > 0, "SomeFinalizersRemain",
			"Some content in the namespace has finalizers remaining: "+tally(left.finalizers, "%s in %d resource instances"),
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

// errDiscovery marks failures to find out which resources there are to delete.
var errDiscovery = errors.New("discover resources")

func discoveryFailed(err error) bool { return errors.Is(err, errDiscovery) }

func tally(m map[string]int, format string) string {
	parts := make([]string, 0, len(m))
	for k, n := range m {
		parts = append(parts, fmt.Sprintf(format, k, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func setCondition(st *v1.NamespaceStatus, c v1.NamespaceCondition) (changed bool) {
	c.LastTransitionTime = metav1.Now()
	for i := range st.Conditions {
		old := &st.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			return false
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return true
	}
	st.Conditions = append(st.Conditions, c)
	return true
}

func (c *Controller) finalize(ctx context.Context, name string) error {
	ns, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ns = ns.DeepCopy()
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f v1.FinalizerName) bool { return f == v1.FinalizerKubernetes })
	_, err = c.client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalize namespace %s: %w", name, err)
	}
	return nil
}
