package protection

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"wherry.dev/internal/api/pods"
)

// byClaim is the name of an index of pods.
const byClaim = "claim"

type claims struct {
	client clientset.Interface
	lister corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// NewForClaims returns the controller of persistent volume claims, with the informers of f.
func NewForClaims(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all, users := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().Pods().Informer()
	err := users.AddIndexers(cache.Indexers{byClaim: func(item any) ([]string, error) {
		p, ok := item.(*v1.Pod)
		if !ok {
			return nil, fmt.Errorf("unexpected %T", item)
		}
		return claimsOf(p), nil
	}})
	if err != nil {
		return nil, err
	}
	c := newController("pvcprotection", &claims{client, all.Lister(), users.GetIndexer()})
	if err := c.loop.Watch(all.Informer(), c.changed); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(users, c.podChanged)
}

// podChanged wakes the claims that a pod lets go of.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	if was != nil && (is == nil || is.UID != was.UID) {
		c.wakeClaims(was)
	}
	if is != nil && over(is) {
		c.wakeClaims(is)
	}
}

func (c *Controller) wakeClaims(p *v1.Pod) {
	for _, key := range claimsOf(p) {
		c.loop.Add(key)
	}
}

// claimsOf returns the keys of the claims that a pod names, or that are made for it.
func claimsOf(p *v1.Pod) []string {
	var keys []string
	pods.References(p, func(kind pods.Reference, name string) {
		if kind == pods.ReferenceClaim && name != "" {
			keys = append(keys, p.Namespace+"/"+name)
		}
	})
	return keys
}

func (*claims) finalizer() string { return "kubernetes.io/pvc-protection" }

func (g *claims) get(key string) (metav1.Object, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, err
	}
	claim, err := g.lister.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return claim.DeepCopy(), nil
}

// used looks at what the informer knows, and only if no pod there has the claim, at storage: the
// informer may be behind.
func (g *claims) used(ctx context.Context, obj metav1.Object) (bool, error) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return false, fmt.Errorf("unexpected %T", obj)
	}
	known, err := g.pods.ByIndex(byClaim, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return false, err
	}
	for _, item := range known {
		if p, ok := item.(*v1.Pod); ok && uses(p, claim) {
			return true, nil
		}
	}
	list, err := g.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		if uses(&list.Items[i], claim) {
			return true, nil
		}
	}
	return false, nil
}

func (g *claims) update(ctx context.Context, obj metav1.Object) error {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	_, err := g.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	return err
}

// uses reports whether a pod has the claim. One that is on no node does not: no kubelet starts a pod
// whose claim is being deleted. One that is over still has a claim that it names, until it is gone, but
// not one that was made for it: that claim and the pod may be waiting for each other.
func uses(p *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	if p.Spec.NodeName == "" {
		return false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		if v.Ephemeral != nil && !over(p) && ephemeral.VolumeClaimName(p, v) == claim.Name && ephemeral.VolumeIsForPod(p, claim) == nil {
			return true
		}
	}
	return false
}

// over reports whether the kubelet is done with a deleted pod, or the deletion does not wait for it.
func over(p *v1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}
