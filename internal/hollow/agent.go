package hollow

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/nodestatus"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/status"
)

// agent is one life of a node's kubelet, put together from the kubelet's own packages.
type agent struct {
	node       *node
	conditions admission.Conditions
	table      *podworker.Table
	status     *status.Manager
	reporter   *nodestatus.Reporter
	admission  *admission.Admission
}

// newAgent builds a kubelet. Nothing runs yet.
func newAgent(n *node) (*agent, error) {
	cfg, client := &n.shared.cfg, n.shared.client
	a := &agent{node: n, status: status.New(client, nil)}
	var err error
	if a.reporter, err = nodestatus.New(cfg.reporter(n.index), client, n.runtime, n.runtime, n.events); err != nil {
		return nil, err
	}
	workers := podworker.NewPods()
	a.admission = admission.New(admission.Config{
		Conditions: &a.conditions, Node: a.reporter.Node, Look: a.look, Changed: func() {}, Preempted: func(string) {},
		Refused: func(pod *v1.Pod, v podplan.Verdict) {
			n.events.Eventf(pod, v1.EventTypeWarning, v.Reason, "%s", v.Message)
		},
	}, workers)
	facts := podplan.Node{HostIPs: []string{cfg.address(n.index).String()}, RuntimeName: runtimeName}
	a.table = podworker.NewTable(workers, podworker.Deps{
		Runtime: n.runtime, Status: a.status, Prober: prober{n.runtime}, Records: n.records, Admission: a.admission,
		Executor: &executor{
			runtime: n.runtime, client: client, status: a.status, events: n.events, delay: cfg.PodStartDelay,
		},
		Residue: func(*v1.Pod) podplan.Residue { return podplan.Residue{} },
		Node:    func() podplan.Node { return facts },
	})
	return a, nil
}

// look takes over the node's labels as the API server has them now.
func (a *agent) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n, err := a.node.shared.client.CoreV1().Nodes().Get(ctx, a.node.name, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the node's labels, using those last seen", "err", err)
		return
	}
	a.reporter.Observe(n)
}

// begin hands over all pods that are bound to the node. Those that had a sandbox go on.
func (a *agent) begin(known map[types.UID]*v1.Pod, ran map[types.UID]bool) {
	for _, pod := range known {
		a.table.Set(pod, false)
	}
	a.admission.Listed(ran)
	a.table.Synced()
}

// set hands over a pod that is new or has changed.
func (a *agent) set(pod *v1.Pod) {
	_, known := a.table.Get(pod.UID)
	a.table.Set(pod, false)
	if !known {
		a.admission.Arrived(pod)
	}
}

// run runs the kubelet until the context ends. The containers stay.
func (a *agent) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{a.status.Run, a.table.Run, a.reporter.Run, a.reporter.RunLease} {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}
