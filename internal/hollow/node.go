package hollow

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podops"
)

// shared is what all nodes of a fleet have in common.
type shared struct {
	cfg    Config
	client kubernetes.Interface
}

// node is one made-up machine: what is left of it while its kubelet does not run.
//
//	silent ──annotation gone──▶ running (agent) ──annotation──▶ silent
type node struct {
	shared  *shared
	index   int
	name    string
	runtime *madeUp
	records *records
	events  podops.Recorder
	changed chan struct{} // capacity 1: whether it fails has changed

	mu      sync.Mutex
	pods    map[types.UID]*v1.Pod // that are bound to it, as the API server has them
	object  *v1.Node              // as it was last seen; nil if there is none
	failing bool
	agent   *agent             // nil while none runs
	end     context.CancelFunc // of the agent
}

func newNode(s *shared, index int, events podops.Recorder) *node {
	n := &node{
		shared: s, index: index, name: s.cfg.name(index), records: newRecords(), events: events,
		changed: make(chan struct{}, 1), pods: map[types.UID]*v1.Pod{},
	}
	n.runtime = newRuntime(s.cfg.podNetwork(index), n.wake)
	return n
}

// run plays the node until the context ends, and calls up once when it is ready, or silent.
func (n *node) run(ctx context.Context, up func()) error {
	defer n.runtime.close()
	up = sync.OnceFunc(up)
	defer up()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("node", n.name))
	for ctx.Err() == nil {
		if n.silent() {
			up()
			select {
			case <-n.changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := n.live(ctx, up); err != nil {
			return err
		}
	}
	return nil
}

// live runs one life of the kubelet: until the node fails, or the context ends.
func (n *node) live(ctx context.Context, up func()) error {
	a, err := newAgent(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.take(a, cancel)
	var told sync.WaitGroup
	told.Go(func() {
		select {
		case <-a.reporter.Ready():
			up()
		case <-ctx.Done():
		}
	})
	defer told.Wait()
	defer cancel()
	defer n.leave()
	return a.run(ctx)
}

// take makes the agent the node's, with all pods that are known by then.
func (n *node) take(a *agent, end context.CancelFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agent, n.end = a, end
	bound := func(uid types.UID) bool { return n.pods[uid] != nil }
	n.runtime.keepOnly(bound)
	n.records.keepOnly(bound)
	ran := map[types.UID]bool{}
	for uid, pod := range n.pods {
		n.runtime.adopt(pod)
		ran[uid] = n.runtime.has(uid)
	}
	if n.object != nil {
		a.reporter.Observe(n.object)
	}
	a.begin(n.pods, ran)
	if n.failing {
		end() // since the last look
	}
}

func (n *node) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agent, n.end = nil, nil
}

func (n *node) silent() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failing
}

// set takes over a pod that is bound to the node.
func (n *node) set(pod *v1.Pod) {
	if pods.IsMirror(pod) {
		return // it stands for a static pod, and the node has none
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[pod.UID] = pod
	if n.agent != nil {
		n.agent.set(pod)
	}
}

// drop is set for a pod that is no more.
func (n *node) drop(pod *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, pod.UID)
	if n.agent != nil {
		n.agent.table.Remove(pod.UID, pod)
	}
}

// observe takes over the node's object: others label and taint it, or make it fail.
func (n *node) observe(obj *v1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.object = obj
	n.failLocked(obj.Annotations[AnnotationFail] == "true")
	if n.agent != nil {
		n.agent.reporter.Observe(obj)
	}
}

// lost is told that the node's object was deleted. A silent node does not know, and stays silent no
// longer: whoever deleted it took the annotation with it.
func (n *node) lost() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.object = nil
	n.failLocked(false)
	if n.agent != nil {
		n.agent.reporter.Lost()
	}
}

func (n *node) failLocked(fails bool) {
	if n.failing == fails {
		return
	}
	n.failing = fails
	if fails && n.end != nil {
		n.end()
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// wake makes the worker of a pod look again.
func (n *node) wake(uid types.UID) {
	n.mu.Lock()
	a := n.agent
	n.mu.Unlock()
	if a != nil {
		a.table.Wake(uid)
	}
}
