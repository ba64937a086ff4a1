package protection

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// settled is after how long a claim is looked at whose pods have changed. A claim that was just made, or is wanted by a new
// pod, is about to be bound: a write of ours in between would make the binder's, or the scheduler's, a conflict. A pod that
// is replaced within this time has used its claim all along.
const settled = time.Second

// Claims protects claims, and says in their condition Unused since when they have been in use, or not (KEP-5541).
type Claims struct {
	protects *Controller
	usage    *usage
}

// Run works until ctx ends.
func (c *Claims) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.protects.Run(gctx) })
	g.Go(func() error { return c.usage.loop.Run(gctx) })
	return g.Wait()
}

// usage keeps the condition of claims that have a volume. A pod that is over does not use a claim, one that waits for a node does.
type usage struct {
	client clientset.Interface
	lister corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
	loop   *controller.Loop
}

func newUsage(client clientset.Interface, f informers.SharedInformerFactory) (*usage, error) {
	claims, users := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().Pods().Informer()
	u := &usage{client: client, lister: claims.Lister(), pods: users.GetIndexer()}
	u.loop = controller.NewLoop("pvcusage", u.reconcile)
	if err := u.loop.Watch(claims.Informer(), u.claimChanged); err != nil {
		return nil, err
	}
	return u, u.loop.Watch(users, u.podChanged)
}

// claimChanged wakes a claim of which nobody has said yet whether it is used.
func (u *usage) claimChanged(_, obj any) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && unused(claim) == nil {
		u.loop.AddAfter(claim.Namespace+"/"+claim.Name, settled)
	}
}

// podChanged wakes the claims that a pod takes up, or lets go of.
func (u *usage) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	if was != nil && is != nil && was.UID == is.UID && pods.IsTerminal(was.Status.Phase) == pods.IsTerminal(is.Status.Phase) {
		return
	}
	for _, p := range []*v1.Pod{was, is} {
		if p == nil {
			continue
		}
		for _, key := range claimusers.ClaimsOf(p) {
			u.loop.AddAfter(key, settled)
		}
	}
}

func (u *usage) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	claim, err := u.lister.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && (claim.DeletionTimestamp != nil || claim.Status.Phase != v1.ClaimBound) {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := claimusers.Of(u.pods, key)
	if err != nil {
		return err
	}
	now := v1.PersistentVolumeClaimCondition{
		Type: v1.PersistentVolumeClaimUnused, LastTransitionTime: metav1.Now(),
		Status: v1.ConditionTrue, Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if slices.ContainsFunc(known, func(p *v1.Pod) bool { return !pods.IsTerminal(p.Status.Phase) && names(p, claim, true) }) {
		now.Status, now.Reason, now.Message = v1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	}
	next := claim.DeepCopy()
	switch had := unused(next); {
	case had == nil:
		next.Status.Conditions = append(next.Status.Conditions, now)
	case had.Status == now.Status:
		return nil
	default:
		*had = now
	}
	_, err = u.client.CoreV1().PersistentVolumeClaims(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func unused(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaimCondition {
	for i := range claim.Status.Conditions {
		if c := &claim.Status.Conditions[i]; c.Type == v1.PersistentVolumeClaimUnused {
			return c
		}
	}
	return nil
}
