package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/dns"
)

// joinedDNS is the DNS server of a node that has joined: it can listen once the node has a range, and the server is told by
// an annotation where it does.
type joinedDNS struct {
	d       *Daemon
	listen  listenFunc
	client  clientset.Interface
	nodes   corelisters.NodeLister
	changed chan struct{} // capacity 1

	failed chan error     // capacity 1: the server has ended
	ranges []string       // for which it listens
	at     netip.AddrPort // where
	stop   func()         // ends it
}

func (d *Daemon) dnsOfJoined(f informers.SharedInformerFactory, listen listenFunc) ([]service, error) {
	client, _, err := d.as(nodeUser(d.cfg.NodeName), nodesGroup)
	if err != nil {
		return nil, err
	}
	nodes := f.Core().V1().Nodes()
	j := &joinedDNS{d: d, listen: listen, client: client, nodes: nodes.Lister(), changed: make(chan struct{}, 1), failed: make(chan error, 1), stop: func() {}}
	_, err = nodes.Informer().AddEventHandler(controller.Handler(func(_, obj any) {
		if n, ok := obj.(*v1.Node); ok && n.Name == d.cfg.NodeName {
			select {
			case j.changed <- struct{}{}:
			default:
			}
		}
	}))
	if err != nil {
		return nil, err
	}
	return []service{{name: "dns", run: j.run}}, nil
}

func (j *joinedDNS) run(ctx context.Context) error {
	defer func() { j.stop() }()
	const least, most = 50 * time.Millisecond, 5 * time.Second
	var again <-chan time.Time
	wait := least
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-j.failed:
			return err
		case <-j.changed:
		case <-again:
		}
		again = nil
		if err := j.look(ctx); err != nil && ctx.Err() == nil {
			// The bridge is made by the runtime, when the kubelet has told it the range.
			if klog.FromContext(ctx).V(2).Enabled() || wait == most {
				klog.FromContext(ctx).Error(err, "The DNS server does not answer yet, will retry", "after", wait)
			}
			again, wait = time.After(wait), min(2*wait, most)
			continue
		}
		wait = least
	}
}

// look listens where the node's range is now, and says so.
func (j *joinedDNS) look(ctx context.Context) error {
	n, err := j.nodes.Get(j.d.cfg.NodeName)
	onBridge := j.d.cfg.RuntimeEndpoint == "" && j.d.cfg.NetworkMode != cluster.ModeNone
	if err != nil || onBridge && len(n.Spec.PodCIDRs) == 0 {
		return nil //nolint:nilerr // its registration, or its range, will be told
	}
	if !slices.Equal(j.ranges, n.Spec.PodCIDRs) || !j.at.IsValid() {
		j.stop()
		j.stop, j.at = func() {}, netip.AddrPort{}
		server, at, err := j.listen(ctx, strings.Join(n.Spec.PodCIDRs, ","))
		if err != nil {
			return err
		}
		j.serve(ctx, server)
		j.at, j.ranges = at, slices.Clone(n.Spec.PodCIDRs)
	}
	if n.Annotations[cluster.AnnotationDNS] == j.at.String() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{cluster.AnnotationDNS: j.at.String()}}})
	if err != nil {
		return err
	}
	if _, err = j.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("say where the DNS server is: %w", err)
	}
	return nil
}

func (j *joinedDNS) serve(ctx context.Context, server *dns.Server) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Run(ctx); ctx.Err() == nil {
			j.failed <- cmp.Or(err, errors.New("stopped unexpectedly"))
		}
	}()
	j.stop = func() { cancel(); <-done }
}
