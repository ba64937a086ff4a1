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
	if err := users.AddIndexers(cache.Indexers{activeInGroup: activeGroupsOf}); err != nil {
		return nil, err
	}
	c := newController("podgroupprotection", &podGroups{client, all.Lister(), users.GetIndexer()})
	c.given = true
	if err := c.loop.Watch(all.Informer(), c.changed); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(users, c.memberChanged)
}

func activeGroupsOf(obj any) ([]string, error) {
	p, ok := obj.(*v1.Pod)
	if !ok || pods.IsTerminal(p.Status.Phase) {
		return nil, nil
	}
	if key := groupOf(p); key != "" {
		return []string{key}, nil
	}
	return nil, nil
}

// groupOf returns the key of a pod's group, or "" if it has none.
func groupOf(p *v1.Pod) string {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return p.Namespace + "/" + *g.PodGroupName
	}
	return ""
}

// memberChanged wakes the group of a pod that is over, or gone.
func (c *Controller) memberChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	if was != nil && (is == nil || is.UID != was.UID) {
		c.wakeGroup(was)
	}
	if is != nil && pods.IsTerminal(is.Status.Phase) {
		c.wakeGroup(is)
	}
}

func (c *Controller) wakeGroup(p *v1.Pod) {
	if key := groupOf(p); key != "" {
		c.loop.Add(key)
	}
}

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

// used looks at what the informer knows, and only if no pod there is in the group, at storage: the informer
// may be behind.
func (g *podGroups) used(ctx context.Context, obj metav1.Object) (bool, error) {
	key := obj.GetNamespace() + "/" + obj.GetName()
	known, err := g.pods.ByIndex(activeInGroup, key)
	if err != nil || len(known) > 0 {
		return len(known) > 0, err
	}
	all, err := g.client.CoreV1().Pods(obj.GetNamespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all.Items, func(p v1.Pod) bool { return !pods.IsTerminal(p.Status.Phase) && groupOf(&p) == key }), nil
}

func (g *podGroups) update(ctx context.Context, obj metav1.Object) error {
	group, ok := obj.(*schedulingv1beta1.PodGroup)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	_, err := g.client.SchedulingV1beta1().PodGroups(group.Namespace).Update(ctx, group, metav1.UpdateOptions{})
	return err
}
