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
	client   clientset.Interface
	node     string
	progress func(string)
}

// newLeaving connects to the cluster, before anything is stopped; nil if there is nothing to do.
func newLeaving(ctx context.Context, f Farewell, cfg config.Config, known bool, progress func(string)) (*leaving, error) {
	switch {
	case !f.Drain && !f.Leave:
		return nil, nil
	case !known:
		return nil, fmt.Errorf("there is no record of a node in %s: nothing can be drained or taken out of a cluster", cfg.DataDir)
	case f.Leave && cfg.Role.HasServer():
		return nil, errors.New("--leave is for nodes that have joined a server, and this is the server")
	case !cfg.Role.HasNode():
		return nil, errors.New("--drain is for nodes, and this is a server without one")
	}
	l := &leaving{Farewell: f, node: cfg.NodeName, progress: progress}
	rest, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig())
	if !cfg.Role.HasServer() {
		paths := certificates.Paths{Kubeconfig: nodeKubeconfig(&cfg), CertDir: filepath.Join(cfg.DataDir, "pki")}
		rest, _, err = certificates.ClientConfig(ctx, paths, cfg.NodeName, true)
	}
	if err != nil {
		return nil, err
	}
	if l.client, err = clientset.NewForConfig(rest); err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	if _, err := l.client.CoreV1().Nodes().Get(asking, l.node, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server does not answer for node %s: %w; leave out --drain and --leave to take the node down regardless", l.node, cause(err))
	}
	return l, nil
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
	if pods.IsStatic(p) || p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
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
	if l == nil || !l.Leave {
		return nil
	}
	l.progress("taking node " + l.node + " out of the cluster")
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	err := l.client.CoreV1().Nodes().Delete(ctx, l.node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w; `kubectl delete node %s` does that, too", l.node, cause(err), l.node)
	}
	return nil
}
