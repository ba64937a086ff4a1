// Package ephemeralvolume makes the PersistentVolumeClaims of pods with generic ephemeral volumes: one for each, from the
// template in the pod, named after pod and volume. The pod is its owner, and the garbage collector deletes it with the
// pod. A claim of that name that belongs to somebody else is left alone, and the pod waits.
package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-helpers/storage/ephemeral"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// Metrics under upstream's names.
var (
	creations = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "ephemeral_volume_controller", Name: "create_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of requests to create a PersistentVolumeClaim.",
	})
	failures = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "ephemeral_volume_controller", Name: "create_failures_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of requests to create a PersistentVolumeClaim that failed.",
	})
)

func init() { legacyregistry.MustRegister(creations, failures) }

// Controller makes claims. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	pods   corelisters.PodLister
	users  cache.Indexer
	claims corelisters.PersistentVolumeClaimLister
	events record.EventRecorder
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all, claims := f.Core().V1().Pods(), f.Core().V1().PersistentVolumeClaims()
	c := &Controller{client: client, pods: all.Lister(), users: all.Informer().GetIndexer(), claims: claims.Lister()}
	c.loop = controller.NewLoop("ephemeral_volume", c.reconcile)
	return c, errors.Join(
		claimusers.AddIndex(all.Informer()),
		c.loop.Watch(all.Informer(), c.podChanged), c.loop.Watch(claims.Informer(), c.claimChanged),
	)
}

// Run makes claims until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "ephemeral_volume")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

// podChanged wakes a new pod. What it wants never changes.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	if is, ok := obj.(*v1.Pod); ok && (was == nil || was.UID != is.UID) {
		c.wake(is)
	}
}

// claimChanged wakes the pod of a claim that is gone.
func (c *Controller) claimChanged(old, obj any) {
	was, _ := old.(*v1.PersistentVolumeClaim)
	if is, _ := obj.(*v1.PersistentVolumeClaim); was == nil || is != nil && is.UID == was.UID {
		return
	}
	users, err := claimusers.Of(c.users, was.Namespace+"/"+was.Name)
	if err != nil {
		return // the index exists
	}
	for _, p := range users {
		c.wake(p)
	}
}

func (c *Controller) wake(p *v1.Pod) {
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Ephemeral != nil {
			c.loop.AddObject(nil, p)
			return
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	p, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.DeletionTimestamp != nil || pods.IsTerminal(p.Status.Phase) {
		return nil
	}
	var errs []error
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			errs = append(errs, c.provide(ctx, p, v))
		}
	}
	return errors.Join(errs...)
}

// provide sees to it that a volume has its claim. A name that somebody else has is no reason to try again before that
// claim is gone, of which an event tells.
func (c *Controller) provide(ctx context.Context, p *v1.Pod, v *v1.Volume) error {
	name := ephemeral.VolumeClaimName(p, v)
	claim, err := c.claims.PersistentVolumeClaims(p.Namespace).Get(name)
	switch {
	case err == nil:
		if err := ephemeral.VolumeIsForPod(p, claim); err != nil {
			c.tell(p, v, err)
		}
		return nil
	case !apierrors.IsNotFound(err):
		return err
	}
	creations.Inc()
	_, err = c.client.CoreV1().PersistentVolumeClaims(p.Namespace).Create(ctx, claimFor(p, v), metav1.CreateOptions{})
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err): // whose it is will be seen in the informer
		failures.Inc()
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	}
	failures.Inc()
	err = fmt.Errorf("create PVC %s: %w", name, err)
	c.tell(p, v, err)
	return fmt.Errorf("pod %s/%s, ephemeral volume %s: %w", p.Namespace, p.Name, v.Name, err)
}

func (c *Controller) tell(p *v1.Pod, v *v1.Volume, err error) {
	c.events.Eventf(p, v1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
}

// claimFor returns the claim of a pod's volume.
func claimFor(p *v1.Pod, v *v1.Volume) *v1.PersistentVolumeClaim {
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: ephemeral.VolumeClaimName(p, v), Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}
}
