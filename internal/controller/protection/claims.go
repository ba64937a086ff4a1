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

	"wherry.dev/internal/controller/claimusers"
)

type claims struct {
	client clientset.Interface
	lister corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// NewForClaims returns the controller of persistent volume claims, with the informers of f.
func NewForClaims(client clientset.Interface, f informers.SharedInformerFactory) (*Claims, error) {
	all, users := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().Pods().Informer()
	if err := claimusers.AddIndex(users); err != nil {
		return nil, err
	}
	c := newController("pvcprotection", &claims{client, all.Lister(), users.GetIndexer()})
	if err := c.loop.Watch(all.Informer(), c.changed); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(users, c.letGo(over, claimusers.ClaimsOf)); err != nil {
		return nil, err
	}
	u, err := newUsage(client, f)
	if err != nil {
		return nil, err
	}
	return &Claims{c, u}, nil
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

func (g *claims) used(ctx context.Context, obj metav1.Object) (bool, error) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return false, fmt.Errorf("unexpected %T", obj)
	}
	known, err := claimusers.Of(g.pods, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return false, err
	}
	return usedBy(ctx, g.client, claim.Namespace, known, func(p *v1.Pod) bool { return uses(p, claim) })
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
	return p.Spec.NodeName != "" && names(p, claim, !over(p))
}

// names reports whether a pod has the claim among its volumes: one that it names or, if made, one that was made for it.
func names(p *v1.Pod, claim *v1.PersistentVolumeClaim, made bool) bool {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		if made && v.Ephemeral != nil && ephemeral.VolumeClaimName(p, v) == claim.Name && ephemeral.VolumeIsForPod(p, claim) == nil {
			return true
		}
	}
	return false
}

// over reports whether the kubelet is done with a deleted pod, or the deletion does not wait for it.
func over(p *v1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}
