package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Labels by which a pod's template says how the pod fares.
const (
	labelFate = "fate"
	fateWaits = "waits" // it never gets ready
)

// nodes are those that there are on both sides.
var nodes = []string{"n-0", "n-1", "n-2"}

// player stands in for scheduler and kubelets: it binds pods, lets them run, and takes away those that are deleted.
type player struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[string]
	pods   cache.SharedIndexInformer
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	bound  map[string]map[string]int // pods of an owner, by node: those of one owner take turns
	ips    int
	avoids string // a node that gets no more pods
}

// newPlayer makes the nodes, and begins to play.
func newPlayer(ctx context.Context, client kubernetes.Interface) (*player, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactory(client, 0)
	p := &player{
		client: client, pods: f.Core().V1().Pods().Informer(), cancel: cancel, bound: map[string]map[string]int{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, time.Second)),
	}
	for i, name := range nodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, newNode(name, i), metav1.CreateOptions{}); err != nil {
			cancel()
			return nil, err
		}
	}
	changed := func(o any) {
		if key, err := cache.MetaNamespaceKeyFunc(o); err == nil {
			p.queue.Add(key)
		}
	}
	_, err := p.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }})
	if err != nil {
		cancel()
		return nil, err
	}
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	for range 4 {
		p.done.Go(func() { p.work(ctx) })
	}
	p.done.Go(func() { p.breathe(ctx) })
	return p, nil
}

func (p *player) stop() {
	p.cancel()
	p.queue.ShutDown()
	p.done.Wait()
}

func newNode(name string, i int) *v1.Node {
	room := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("500"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprint("z-", i%2)}},
		Status: v1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: fmt.Sprint("10.1.0.", i+1)}},
		},
	}
}

// breathe renews the leases of the nodes.
func (p *player) breathe(ctx context.Context) {
	leases := p.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	for {
		for _, name := range nodes {
			l := coordinationv1ac.Lease(name, v1.NamespaceNodeLease).WithSpec(coordinationv1ac.LeaseSpec().
				WithHolderIdentity(name).WithLeaseDurationSeconds(40).WithRenewTime(metav1.NowMicro()))
			_, _ = leases.Apply(ctx, l, metav1.ApplyOptions{FieldManager: "player", Force: true}) // else the next time
		}
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return
		}
	}
}

func (p *player) work(ctx context.Context) {
	for {
		key, over := p.queue.Get()
		if over {
			return
		}
		if err := p.act(ctx, key); err != nil {
			p.queue.AddRateLimited(key) // somebody else was faster, or it is gone
		} else {
			p.queue.Forget(key)
		}
		p.queue.Done(key)
	}
}

// act does the next thing that a pod waits for.
func (p *player) act(ctx context.Context, key string) error {
	o, exists, err := p.pods.GetIndexer().GetByKey(key)
	pod, ok := o.(*v1.Pod)
	if err != nil || !exists || !ok {
		return err
	}
	api := p.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed:
		pod = pod.DeepCopy()
		pod.Status.Phase = v1.PodFailed
		become(pod, v1.ConditionFalse)
		_, err := api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	case pod.DeletionTimestamp != nil:
		return api.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	case pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0:
		return api.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: v1.ObjectReference{Kind: "Node", Name: p.nodeFor(pod)},
		}, metav1.CreateOptions{})
	case pod.Spec.NodeName != "" && pod.Status.Phase == v1.PodPending:
		pod = pod.DeepCopy()
		p.mu.Lock()
		p.ips++
		ip := fmt.Sprintf("10.244.%d.%d", p.ips/250%250, 1+p.ips%250)
		p.mu.Unlock()
		ready := v1.ConditionTrue
		if pod.Labels[labelFate] == fateWaits {
			ready = v1.ConditionFalse
		}
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = v1.PodRunning, ip, []v1.PodIP{{IP: ip}}
		pod.Status.StartTime = new(metav1.Now())
		become(pod, ready)
		_, err := api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	}
	return nil
}

// become gives a pod the conditions of one that is ready or not.
func become(pod *v1.Pod, ready v1.ConditionStatus) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady || c.Type == v1.ContainersReady
	})
	for _, kind := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: kind, Status: ready, LastTransitionTime: metav1.Now()})
	}
}

// avoid says whether a node gets no more pods, but for daemons.
func (p *player) avoid(node string, so bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.avoids = ""; so {
		p.avoids = node
	}
}

// nodeFor returns where a pod goes: a daemon where it belongs, and of others each of an owner's to the next node.
func (p *player) nodeFor(pod *v1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range t.MatchFields {
				return f.Values[0]
			}
		}
	}
	owner := pod.Namespace + "/" + pod.GenerateName
	if ref := metav1.GetControllerOf(pod); ref != nil {
		owner = string(ref.UID)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bound[owner] == nil {
		p.bound[owner] = map[string]int{}
	}
	used := p.bound[owner]
	may := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == p.avoids })
	node := slices.MinFunc(may, func(a, b string) int {
		if used[a] != used[b] {
			return used[a] - used[b]
		}
		return strings.Compare(a, b)
	})
	used[node]++
	return node
}
