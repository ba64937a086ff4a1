// Package bootstrap makes the objects that every cluster starts with: namespaces, the default roles, priority
// classes, the service kubernetes, the range of services' addresses, whom servers of the cluster trust, and the
// levels of priority and fairness. It keeps those that the cluster cannot do without while somebody deletes or
// changes them. It writes through a client, like anybody else.
package bootstrap

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/service"
)

// Config is what the objects are made from.
type Config struct {
	// Client is the server's client of itself, which may do everything.
	Client kubernetes.Interface
	// Store returns the storage of a resource, in which objects are watched.
	Store func(group, resource string) *registry.Store
	// Lookup finds services.
	Lookup *registry.Lookup
	// Services gives services their addresses and node ports.
	Services *service.Allocator

	// ServiceCIDRs are the networks of services' addresses, ServiceIP that of default/kubernetes.
	ServiceCIDRs []*net.IPNet
	ServiceIP    net.IP
	// Address and Port are where this server is reached.
	Address net.IP
	Port    int
	// Alone means that no other server can be using the same data.
	Alone bool
	// Present says, until its context ends, that the server of an address is there, and tells the addresses of all that are,
	// whenever they change; nil if Alone.
	Present func(ctx context.Context, address string, changed func(addresses []string)) error

	// ClientCA and RequestHeader are what this server trusts.
	ClientCA      dynamiccertificates.CAContentProvider
	RequestHeader *authenticatorfactory.RequestHeaderConfig

	// Policy holds, for each resource of RBAC, what returns once authorization knows a version of it. Without
	// entries, no roles and bindings are made.
	Policy map[string]Reached
	// PriorityClasses means that those of the system are made.
	PriorityClasses bool
	// PodGroups means that pod groups are served.
	PodGroups bool
	// NodesJoin means that nodes join this server as those of Wherry do.
	NodesJoin bool
	// LocalStorage means that the class of local volumes is made, once.
	LocalStorage bool
	// Flow keeps the objects of priority and fairness; nil if there is none.
	Flow *Flow

	// GiveUp is closed when storage has failed for good; nil if it never does.
	GiveUp <-chan struct{}
}

// Reached returns once a version of a resource is known to whoever follows it, or with an error.
type Reached func(ctx context.Context, version uint64) error

// Objects are what every cluster starts with. Create them with New.
type Objects struct {
	cfg     Config
	present atomic.Pointer[[]string] // the addresses of all servers that are there; nil if that is not known
}

// New returns the objects as cfg wants them. It writes nothing.
func New(cfg Config) *Objects { return &Objects{cfg: cfg} }

// Make creates the objects that are missing, and corrects others. It repeats what fails for a reason that
// passes, and returns nil when ctx ends before it is done.
func (o *Objects) Make(ctx context.Context) error {
	steps := []func(context.Context) error{o.ensureNamespaces}
	if len(o.cfg.Policy) > 0 {
		steps = append(steps, o.ensurePolicy)
	}
	if o.cfg.PriorityClasses {
		steps = append(steps, o.ensurePriorityClasses)
	}
	if o.cfg.LocalStorage {
		steps = append(steps, o.ensureLocalStorage)
	}
	if o.cfg.Flow != nil {
		steps = append(steps, o.cfg.Flow.make)
	}
	steps = append(steps, o.ensureTokenTracking, o.publishTrust, o.ensureServiceCIDR, o.repairClaims, o.ensureService, o.awaitPolicy)
	for _, step := range steps {
		if err := o.insist(ctx, func() error { return step(ctx) }); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // told to stop before it was done
			}
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	return nil
}

// Keep writes again what somebody deletes or changes and the cluster cannot do without, until ctx ends. Make
// comes first.
func (o *Objects) Keep(ctx context.Context) error {
	keepers := []func(context.Context) error{o.keepTrust, o.keepServiceCIDR, o.keepService, o.repairServices}
	if o.cfg.Flow != nil {
		keepers = append(keepers, o.cfg.Flow.keep)
	}
	if o.cfg.Present != nil {
		keepers = append(keepers, o.keepPresent)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, keep := range keepers {
		g.Go(func() error { return keep(gctx) })
	}
	return g.Wait()
}

// Withdraw removes this server's address from the endpoints of default/kubernetes, if other servers go on. A
// single server leaves it there, because it will be back.
func (o *Objects) Withdraw(ctx context.Context) error {
	if o.cfg.Alone {
		return nil
	}
	return o.publish(ctx, false)
}

// insist repeats what fails for a reason that passes: a member of etcd went away, another server was faster, or
// this one is busy. It gives up when etcd has failed for good.
func (o *Objects) insist(ctx context.Context, step func() error) error {
	const least, most = 50 * time.Millisecond, 2 * time.Second
	for wait := least; ; wait = min(2*wait, most) {
		err := step()
		if err == nil || !passes(err) {
			return err
		}
		klog.FromContext(ctx).Info("Cannot create what every cluster starts with, trying again", "err", err)
		select {
		case <-time.After(wait):
		case <-o.cfg.GiveUp:
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
func (o *Objects) awaitPolicy(ctx context.Context) error {
	for resource, reached := range o.cfg.Policy {
		list, err := o.cfg.Client.RbacV1().RESTClient().Get().Resource(resource).Do(ctx).Get()
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		var newest uint64
		err = meta.EachListItem(list, func(item runtime.Object) error {
			obj, err := meta.Accessor(item)
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
		if err := reached(ctx, newest); err != nil {
			return fmt.Errorf("follow %s: %w", resource, err)
		}
	}
	return nil
}

// systemNamespaces exist in every cluster; upstream's controllers create kube-node-lease and
// kube-public too.
var systemNamespaces = []string{
	metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
}

func (o *Objects) ensureNamespaces(ctx context.Context) error {
	for _, name := range systemNamespaces {
		if _, err := o.cfg.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"}); err == nil {
			continue
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := o.cfg.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}

// ensurePriorityClasses creates the priority classes of what a cluster cannot do without.
func (o *Objects) ensurePriorityClasses(ctx context.Context) error {
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
		if err := ensure(ctx, c, o.cfg.Client.SchedulingV1().PriorityClasses()); err != nil {
			return err
		}
	}
	return nil
}

// ensureTokenTracking records the day since when the uses of tokens in secrets are known: one that has
// no date of its last use has not been used since.
func (o *Objects) ensureTokenTracking(ctx context.Context) error {
	const name, since = "kube-apiserver-legacy-service-account-token-tracking", "since"
	api := o.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
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
