package apiserver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
)

// shutdownTimeout is how long open watches and streams have to end when the server stops.
const shutdownTimeout = 2 * time.Second

// everything selects all objects of a list.
var everything = storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}

// follower is a running index over a store.
type follower struct {
	group, name string
	run         func(ctx context.Context) error
	synced      <-chan struct{}
	reached     func(ctx context.Context, version uint64) error
}

func follow[T registry.Object](s *Server, group, resource string, f *registry.Follower[T]) follower {
	store := s.store(group, resource)
	return follower{group, resource, func(ctx context.Context) error { return f.Run(ctx, store, fields.Everything()) }, f.Synced(), f.Reached}
}

// followers returns the indexes that authorization reads.
func (s *Server) followers() []follower {
	const group = rbacv1.GroupName
	return []follower{
		follow(s, "", "pods", registry.NewFollower(s.auth.NodePods.SetPod, s.auth.NodePods.DeletePod)),
		follow(s, group, "roles", registry.NewFollower(s.auth.Roles.SetRole, s.auth.Roles.DeleteRole)),
		follow(s, group, "clusterroles", registry.NewFollower(s.auth.Roles.SetClusterRole, s.auth.Roles.DeleteClusterRole)),
		follow(s, group, "rolebindings", registry.NewFollower(s.auth.Roles.SetRoleBinding, s.auth.Roles.DeleteBinding)),
		follow(s, group, "clusterrolebindings", registry.NewFollower(s.auth.Roles.SetClusterRoleBinding, s.auth.Roles.DeleteBinding)),
	}
}

// bootstrap creates the objects that every cluster starts with, and then closes ready.
func (s *Server) bootstrap(ctx context.Context, followers []follower) error {
	for _, f := range followers {
		select {
		case <-f.synced:
		case <-ctx.Done():
			return nil
		}
	}
	client, err := s.ownClient()
	if err != nil {
		return err
	}
	known := func(ctx context.Context, client kubernetes.Interface) error {
		return awaitPolicy(ctx, client, followers)
	}
	steps := []func(context.Context, kubernetes.Interface) error{s.ensureNamespaces}
	if s.servesRBAC() {
		steps = append(steps, s.ensurePolicy)
	}
	if s.serves(schedulingv1.SchemeGroupVersion, "priorityclasses") {
		steps = append(steps, s.ensurePriorityClasses)
	}
	steps = append(steps, s.ensureFlow, s.ensureTokenTracking, s.publishTrust, s.ensureServiceCIDR, s.repairClaims, s.ensureService)
	if s.servesRBAC() {
		steps = append(steps, known)
	}
	for _, step := range steps {
		if err := s.insist(ctx, func() error { return step(ctx, client) }); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // told to stop before it was done
			}
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	select {
	case <-s.prepared: // every path is installed, including OpenAPI's
		close(s.ready)
	case <-ctx.Done():
	}
	return nil
}

// insist repeats what fails for a reason that passes: a member of etcd went away, another server was faster, or
// this one is busy. It gives up when etcd has failed for good.
func (s *Server) insist(ctx context.Context, step func() error) error {
	const least, most = 50 * time.Millisecond, 2 * time.Second
	for wait := least; ; wait = min(2*wait, most) {
		err := step()
		if err == nil || !passes(err) {
			return err
		}
		klog.FromContext(ctx).Info("Cannot create what every cluster starts with, trying again", "err", err)
		select {
		case <-time.After(wait):
		case <-s.backend.RestartDue():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// passes reports whether an error may be gone the next time.
func passes(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInternalError, metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout, metav1.StatusReasonServiceUnavailable,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonConflict, metav1.StatusReasonAlreadyExists:
		return true
	case metav1.StatusReasonUnknown: // of the connection, or of etcd
		return true
	}
	return false
}

// awaitPolicy returns once authorization knows the present roles and bindings, so that a request
// made as soon as the server is ready is not refused because of an object created a moment before.
func awaitPolicy(ctx context.Context, client kubernetes.Interface, followers []follower) error {
	for _, f := range followers {
		if f.group != rbacv1.GroupName {
			continue
		}
		list, err := client.RbacV1().RESTClient().Get().Resource(f.name).Do(ctx).Get()
		if err != nil {
			return fmt.Errorf("list %s: %w", f.name, err)
		}
		var newest uint64
		err = meta.EachListItem(list, func(o runtime.Object) error {
			obj, err := meta.Accessor(o)
			if err != nil {
				return err
			}
			version, err := registry.Version(obj)
			newest = max(newest, version)
			return err
		})
		if err != nil {
			return err
		}
		if err := f.reached(ctx, newest); err != nil {
			return fmt.Errorf("follow %s: %w", f.name, err)
		}
	}
	return nil
}

// ownClient returns the server's client of itself, for the objects that it maintains.
func (s *Server) ownClient() (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(s.clients.Own())
}

// systemNamespaces exist in every cluster; upstream's controllers create kube-node-lease and
// kube-public too.
var systemNamespaces = []string{
	metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
}

func (s *Server) ensureNamespaces(ctx context.Context, client kubernetes.Interface) error {
	for _, name := range systemNamespaces {
		if _, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"}); err == nil {
			continue
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}

// ensurePriorityClasses creates the priority classes of what a cluster cannot do without.
func (s *Server) ensurePriorityClasses(ctx context.Context, client kubernetes.Interface) error {
	for _, c := range []*schedulingv1.PriorityClass{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: pods.NodeCritical},
			Value:       pods.NodeCriticalPriority,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		{
			ObjectMeta:  metav1.ObjectMeta{Name: pods.ClusterCritical},
			Value:       pods.ClusterCriticalPriority,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
	} {
		if err := ensure(ctx, c, client.SchedulingV1().PriorityClasses()); err != nil {
			return err
		}
	}
	return nil
}

// ensureTokenTracking records the day since when the uses of tokens in secrets are known: one that has
// no date of its last use has not been used since.
func (s *Server) ensureTokenTracking(ctx context.Context, client kubernetes.Interface) error {
	const name, since = "kube-apiserver-legacy-service-account-token-tracking", "since"
	api := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	today := map[string]string{since: time.Now().UTC().Format(time.DateOnly)}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}, Data: today}
	if err := ensure(ctx, cm, api); err != nil {
		return err
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		cm, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := time.Parse(time.DateOnly, cm.Data[since]); err == nil {
			return nil
		}
		cm.Data = today
		_, err = api.Update(ctx, cm, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("config map %s: %w", name, err)
	}
	return nil
}

// getCreator is the part of a typed client that ensure needs.
type getCreator[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error)
}

func ensure[T metav1.Object](ctx context.Context, obj T, client getCreator[T]) error {
	_, err := client.Get(ctx, obj.GetName(), metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, obj, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%T %s: %w", obj, obj.GetName(), err)
	}
	return nil
}
