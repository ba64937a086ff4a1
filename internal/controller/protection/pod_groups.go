package protection

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

// activeInGroup is the index of pods that are not over by their group.
const activeInGroup = "activeInPodGroup"

type podGroups struct {
	client clientset.Interface
	lister schedulinglisters.PodGroupLister
	pods   cache.Indexer
}

// NewForPodGroups returns the controller of pod groups, with the informers of f.
func NewForPodGroups(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all, users := f.Scheduling().V1beta1().PodGroups(), f.Core().V1().Pods().Informer()
	if err := users.AddIndexers(cache.Indexers{activeInGroup: controller.IndexBy(activeGroupOf)}); err != nil {
		return nil, err
	}
	c := newController("podgroupprotection", &podGroups{client, all.Lister(), users.GetIndexer()})
	c.given = true
	if err := c.loop.Watch(all.Informer(), c.changed); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(users, c.letGo(isOver, controller.GroupOf))
}

// activeGroupOf returns the key of the group of a pod that is not over.
func activeGroupOf(p *v1.Pod) []string {
	if isOver(p) {
		return nil
	}
	return controller.GroupOf(p)
}

func isOver(p *v1.Pod) bool { return pods.IsTerminal(p.Status.Phase) }

func (*podGroups) finalizer() string { return "scheduling.k8s.io/podgroup-protection" }

func (g *podGroups) get(key string) (metav1.Object, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, err
	}
	group, err := g.lister.PodGroups(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return group.DeepCopy(), nil
}

func (g *podGroups) used(ctx context.Context, obj metav1.Object) (bool, error) {
	key := obj.GetNamespace() + "/" + obj.GetName()
	known, err := controller.LookUp[*v1.Pod](g.pods, activeInGroup, key)
	if err != nil {
		return false, err
	}
	return usedBy(ctx, g.client, obj.GetNamespace(), known, func(p *v1.Pod) bool { return slices.Contains(activeGroupOf(p), key) })
}

func (g *podGroups) update(ctx context.Context, obj metav1.Object) error {
	group, ok := obj.(*schedulingv1beta1.PodGroup)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	_, err := g.client.SchedulingV1beta1().PodGroups(group.Namespace).Update(ctx, group, metav1.UpdateOptions{})
	return err
}
