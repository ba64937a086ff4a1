package hollow

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podsource"
)

// Fleet is a number of hollow nodes.
type Fleet struct {
	shared shared
	ready  chan struct{}

	// What Run makes before it follows anything.
	byName map[string]*node
	nodes  []*node

	mu      sync.Mutex
	foreign error // a node of somebody else's that has an address of ours
}

// New checks the configuration. Nothing runs yet.
func New(cfg Config, client kubernetes.Interface) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Fleet{shared: shared{cfg, client}, ready: make(chan struct{}), byName: map[string]*node{}}, nil
}

// Ready is closed once every node was ready, or is to be silent.
func (f *Fleet) Ready() <-chan struct{} { return f.ready }

// Run plays the nodes until the context ends, and returns when everything that it started is gone:
//
//  1. What is there is listed: nodes and pods that a former process had are taken up.
//  2. The nodes start, so many at a time.
//  3. At the end the nodes are deleted, if that was asked for.
func (f *Fleet) Run(ctx context.Context) error {
	var eventClient kubernetes.Interface
	if f.shared.cfg.Events {
		eventClient = f.shared.client
	}
	ev := newEvents(eventClient)
	defer ev.stop()
	for i := range f.shared.cfg.Nodes {
		n := newNode(&f.shared, i, ev.of(i, f.shared.cfg.name(i)))
		f.nodes = append(f.nodes, n)
		f.byName[n.name] = n
	}
	begun, err := f.play(ctx)
	if f.shared.cfg.Cleanup && begun {
		return errors.Join(err, f.delete(context.WithoutCancel(ctx)))
	}
	return err
}

// play follows and runs the nodes. It reports whether any may have been registered.
func (f *Fleet) play(ctx context.Context) (begun bool, err error) {
	g, ctx := errgroup.WithContext(ctx)
	nodes, bound := make(chan struct{}), make(chan struct{})
	onNode := podsource.Events{Set: f.setNode, Gone: f.goneNode, Synced: func() { close(nodes) }}
	onPod := podsource.Events{Set: f.setPod, Gone: f.gonePod, Synced: func() { close(bound) }}
	g.Go(func() error {
		podsource.Nodes(ctx, f.shared.client, onNode)
		return nil
	})
	g.Go(func() error {
		podsource.BoundPods(ctx, f.shared.client, onPod)
		return nil
	})
	for _, synced := range []chan struct{}{nodes, bound} {
		select {
		case <-synced:
		case <-ctx.Done():
			return false, g.Wait()
		}
	}
	if err := f.conflict(); err != nil {
		g.Go(func() error { return err }) // ends the others
		return false, g.Wait()
	}
	g.Go(func() error { return f.start(ctx, g) })
	return true, g.Wait()
}

// start starts the nodes, so many at a time, and says how far it is.
func (f *Fleet) start(ctx context.Context, g *errgroup.Group) error {
	progress := newProgress(&f.shared.cfg)
	slots := make(chan struct{}, f.shared.cfg.Parallel)
	var up sync.WaitGroup
	for _, n := range f.nodes {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		up.Add(1)
		g.Go(func() error {
			return n.run(ctx, func() {
				<-slots
				progress.add()
				up.Done()
			})
		})
	}
	up.Wait()
	if ctx.Err() == nil {
		progress.done()
		close(f.ready)
	}
	return nil
}

func (f *Fleet) setPod(obj runtime.Object) {
	pod := obj.(*v1.Pod)
	if n := f.byName[pod.Spec.NodeName]; n != nil {
		n.set(slim(pod))
	}
}

// slim drops from a pod, which nobody else has yet, what containers would see that do not exist.
func slim(pod *v1.Pod) *v1.Pod {
	for c := range pods.AllContainers(&pod.Spec) {
		c.Env, c.EnvFrom, c.Command, c.Args = nil, nil, nil, nil
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Projected != nil {
			v.Projected = &v1.ProjectedVolumeSource{}
		}
	}
	return pod
}

func (f *Fleet) gonePod(obj runtime.Object) {
	pod := obj.(*v1.Pod)
	if n := f.byName[pod.Spec.NodeName]; n != nil {
		n.drop(pod)
	}
}

func (f *Fleet) setNode(obj runtime.Object) {
	object := obj.(*v1.Node)
	n := f.byName[object.Name]
	if n == nil {
		f.compare(object)
		return
	}
	if object.Labels[LabelHollow] != "true" {
		f.refusef("the node %s is there already and is not hollow; choose another --name-prefix", object.Name)
	}
	want := f.shared.cfg.podNetwork(n.index).String()
	if has := object.Spec.PodCIDR; has != "" && has != want {
		f.refusef("the node %s has %s for its pods, not %s: start with the --pod-cidr and --pods of the last time, "+
			"or delete the nodes with the label %s", object.Name, has, want, LabelHollow)
	}
	n.observe(object)
}

func (f *Fleet) goneNode(obj runtime.Object) {
	if n := f.byName[obj.(*v1.Node).Name]; n != nil {
		n.lost()
	}
}

// compare notes if a node of somebody else's is in the way.
func (f *Fleet) compare(object *v1.Node) {
	nodes, all := f.shared.cfg.NodeCIDR, f.shared.cfg.PodCIDR
	for _, a := range object.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && nodes.Contains(ip) {
			f.refusef("the node %s has the address %s of --node-cidr %s; choose another network", object.Name, ip, nodes)
		}
	}
	for _, cidr := range object.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil && all.Overlaps(p) {
			f.refusef("the pods of node %s have the network %s, which --pod-cidr %s overlaps; choose another one",
				object.Name, p, all)
		}
	}
}

// refusef notes why the fleet cannot begin; it has no effect once it has.
func (f *Fleet) refusef(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.foreign == nil {
		f.foreign = fmt.Errorf(format, args...)
	}
}

// conflict returns what was in the way when the fleet began.
func (f *Fleet) conflict() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.foreign
}

// deletePatience is how long the deletion of all nodes may take.
const deletePatience = 5 * time.Minute

// delete removes the nodes, and their leases, from the API server.
func (f *Fleet) delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deletePatience)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.shared.cfg.Parallel)
	for _, n := range f.nodes {
		g.Go(func() error { return f.deleteNode(ctx, n.name) })
	}
	return g.Wait()
}

func (f *Fleet) deleteNode(ctx context.Context, name string) error {
	err := f.shared.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	err = f.shared.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", name, err)
	}
	return nil
}
