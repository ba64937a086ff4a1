package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/config"
	"wherry.dev/internal/kubelet/certificates"
)

// Farewell says what a node does for its cluster before it is taken down.
type Farewell struct {
	// Drain: its pods are evicted first, as `kubectl drain` does, within Patience; they start elsewhere.
	Drain    bool
	Patience time.Duration
	// Leave: its Node is deleted afterwards.
	Leave bool
}

// leaving is a node that takes leave of its cluster.
type leaving struct {
	Farewell
	client clientset.Interface
	node   string // empty for a server without one
	// others reach the other servers, of a server that leaves.
	others   []clientset.Interface
	server   *Client // of its daemon, if its etcd has to leave, too
	progress func(string)
}

// newLeaving connects to the cluster, before anything is stopped; nil if there is nothing to do.
func newLeaving(ctx context.Context, f Farewell, cfg config.Config, known bool, progress func(string)) (*leaving, error) {
	switch {
	case !f.Drain && !f.Leave:
		return nil, nil
	case !known:
		return nil, fmt.Errorf("there is no record of a node in %s: nothing can be drained or taken out of a cluster", cfg.DataDir)
	case f.Drain && !cfg.Role.HasNode():
		return nil, errors.New("--drain is for nodes, and this is a server without one")
	}
	l := &leaving{Farewell: f, node: cfg.NodeName, progress: progress}
	if !cfg.Role.HasNode() {
		l.node = ""
	}
	own, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig())
	if !cfg.Role.HasServer() {
		paths := certificates.Paths{Kubeconfig: nodeKubeconfig(&cfg), CertDir: filepath.Join(cfg.DataDir, "pki")}
		var servers *serverList
		if servers, err = newServerList(cfg.DataDir, cfg.NodeName, cfg.Server); err == nil {
			own, _, err = servers.client(ctx, paths, cfg.NodeName)
		}
	}
	if err != nil {
		return nil, err
	}
	if l.client, err = clientset.NewForConfig(own); err != nil {
		return nil, err
	}
	if f.Leave && cfg.Role.HasServer() {
		if err := l.findOthers(ctx, own, cfg); err != nil {
			return nil, err
		}
	}
	if l.node == "" {
		return l, nil
	}
	asking, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	if _, err := l.client.CoreV1().Nodes().Get(asking, l.node, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server does not answer for node %s: %w; leave out --drain and --leave to take the node down regardless", l.node, cause(err))
	}
	return l, nil
}

// findOthers makes sure that a server that leaves is not the last one.
func (l *leaving) findOthers(ctx context.Context, own *rest.Config, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	list, err := l.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the servers of the cluster: %w; leave out --leave to take this one down regardless", cause(err))
	}
	for _, address := range othersIn(list, &cfg) {
		other := rest.CopyConfig(own)
		other.Host = "https://" + address
		client, err := clientset.NewForConfig(other)
		if err != nil {
			return err
		}
		l.others = append(l.others, client)
	}
	if len(l.others) == 0 {
		return errors.New("--leave: this is the only server of its cluster, which would be lost; `wherry down --purge` does that")
	}
	if len(cfg.EtcdServers) == 0 {
		l.server = Dial(cfg.RunDir)
	}
	return nil
}

// leaveEtcd takes a server's etcd out of the cluster, while it runs: it may take its own vote to do that.
func (l *leaving) leaveEtcd(ctx context.Context) error {
	if l == nil || l.server == nil {
		return nil
	}
	defer l.server.Close()
	l.progress("taking its etcd out of the cluster")
	members, err := l.server.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Self {
			_, err := l.server.RemoveMember(ctx, m.ID)
			return err
		}
	}
	return nil // it has left before
}

// drain cordons the node and evicts its pods, but for those that only run there: of daemon sets and of the node's own files.
func (l *leaving) drain(ctx context.Context) error {
	if l == nil || !l.Drain {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.Patience)
	defer cancel()
	l.progress("cordoning node " + l.node)
	_, err := l.client.CoreV1().Nodes().Patch(ctx, l.node, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil // nothing runs on a node that is not there
	}
	if err != nil {
		return fmt.Errorf("cordon node %s: %w", l.node, err)
	}
	list, err := l.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", l.node).String(),
	})
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", l.node, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	for i := range list.Items {
		if p := &list.Items[i]; movable(p) {
			g.Go(func() error { return l.evict(gctx, p) })
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("drain node %s: %w; it stays cordoned: `kubectl uncordon %s` undoes that", l.node, err, l.node)
	}
	return nil
}

// movable reports whether a pod would start elsewhere, or is not to be lost.
func movable(p *v1.Pod) bool {
	if pods.IsMirror(p) || p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
		return false
	}
	owner := metav1.GetControllerOf(p)
	return owner == nil || owner.Kind != "DaemonSet"
}

// evict evicts a pod, as soon as the budgets let it, and waits until it is gone.
func (l *leaving) evict(ctx context.Context, p *v1.Pod) error {
	const again = 500 * time.Millisecond
	l.progress("evicting pod " + p.Namespace + "/" + p.Name)
	for {
		err := l.client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			break
		}
		if !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if !pause(ctx, again) {
			return fmt.Errorf("pod %s/%s could not be evicted within %s: %w", p.Namespace, p.Name, l.Patience, err)
		}
	}
	for {
		now, err := l.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || err == nil && now.UID != p.UID {
			return nil // gone, or another one by now, which may not be this node's to see
		}
		if !pause(ctx, again/5) {
			return fmt.Errorf("pod %s/%s was evicted and did not end within %s", p.Namespace, p.Name, l.Patience)
		}
	}
}

// pause reports whether ctx still lives after d.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// leave deletes the Node. The kubelet, which would register it again, has ended.
func (l *leaving) leave(ctx context.Context) error {
	if l == nil || !l.Leave || l.node == "" {
		return nil
	}
	l.progress("taking node " + l.node + " out of the cluster")
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	clients := l.others
	if len(clients) == 0 {
		clients = append(clients, l.client)
	}
	var err error
	for _, c := range clients {
		if err = c.CoreV1().Nodes().Delete(ctx, l.node, metav1.DeleteOptions{}); err == nil || apierrors.IsNotFound(err) {
			return nil
		}
	}
	return fmt.Errorf("delete node %s: %w; `kubectl delete node %s` does that, too", l.node, cause(err), l.node)
}
