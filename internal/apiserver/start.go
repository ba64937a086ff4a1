package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"wherry.dev/internal/apiserver/bootstrap"
	"wherry.dev/internal/apiserver/registry"
)

// shutdownTimeout is how long open watches and streams have to end when the server stops.
const shutdownTimeout = 2 * time.Second

// follower is a running index over a store.
type follower struct {
	group, name string
	run         func(ctx context.Context) error
	synced      <-chan struct{}
	reached     bootstrap.Reached
}

func follow[T registry.Object](s *Server, group, resource string, f *registry.Follower[T]) follower {
	store := s.store(group, resource)
	return follower{group, resource, func(ctx context.Context) error { return f.Run(ctx, store, fields.Everything()) }, f.Synced(), f.Reached}
}

// newFollowers returns the indexes that authorization reads.
func (s *Server) newFollowers() []follower {
	const group = rbacv1.GroupName
	return []follower{
		follow(s, "", "pods", registry.NewFollower(s.auth.NodePods.SetPod, s.auth.NodePods.DeletePod)),
		follow(s, group, "roles", registry.NewFollower(s.auth.Roles.SetRole, s.auth.Roles.DeleteRole)),
		follow(s, group, "clusterroles", registry.NewFollower(s.auth.Roles.SetClusterRole, s.auth.Roles.DeleteClusterRole)),
		follow(s, group, "rolebindings", registry.NewFollower(s.auth.Roles.SetRoleBinding, s.auth.Roles.DeleteBinding)),
		follow(s, group, "clusterrolebindings", registry.NewFollower(s.auth.Roles.SetClusterRoleBinding, s.auth.Roles.DeleteBinding)),
	}
}

// ownClient returns the server's client of itself, for the objects that it maintains.
func (s *Server) ownClient() (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(s.clients.Own())
}

// startingObjects returns the objects that every cluster starts with. client is the server's client of itself,
// whose informers are shared.
func (s *Server) startingObjects(client kubernetes.Interface, shared informers.SharedInformerFactory) (*bootstrap.Objects, error) {
	first, err := firstServiceIP(s.cfg.ServiceCIDRs[0])
	if err != nil {
		return nil, err
	}
	cfg := bootstrap.Config{
		Client: client, Store: s.store, Lookup: s.lookup, Services: s.services,
		ServiceCIDRs: s.cfg.ServiceCIDRs, ServiceIP: first,
		Address: s.cfg.AdvertiseAddress, Port: s.cfg.SecurePort, Alone: s.cfg.alone(),
		ClientCA: s.creds.clientCA, RequestHeader: s.creds.requestHeader,
		PriorityClasses: s.serves(schedulingv1.SchemeGroupVersion, "priorityclasses"),
		PodGroups:       s.serves(schedulingv1beta1.SchemeGroupVersion, "workloads", "podgroups"),
		NodesJoin:       s.cfg.NodesJoin,
		LocalStorage:    s.cfg.LocalStorage && s.serves(storagev1.SchemeGroupVersion, "storageclasses", "csidrivers"),
		GiveUp:          s.backend.RestartDue(),
	}
	if !cfg.Alone {
		cfg.Present = s.keepPresent
	}
	if s.cfg.PriorityAndFairness {
		cfg.Flow = bootstrap.NewFlow(client, shared)
	}
	if s.servesRBAC() {
		cfg.Policy = map[string]bootstrap.Reached{}
		for _, f := range s.followers {
			if f.group == rbacv1.GroupName {
				cfg.Policy[f.name] = f.reached
			}
		}
	}
	return bootstrap.New(cfg), nil
}

// keepPresent says in the data that the server at an address is there, in upstream's form.
func (s *Server) keepPresent(ctx context.Context, address string, changed func([]string)) error {
	subset := corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: address}}}
	value, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), &corev1.Endpoints{Subsets: []corev1.EndpointSubset{subset}})
	if err != nil {
		return err
	}
	return s.backend.KeepPresent(ctx, address, value, changed)
}

// start makes the objects that every cluster starts with, once authorization knows what is stored, closes ready,
// and keeps the objects until ctx ends.
func (s *Server) start(ctx context.Context) error {
	for _, f := range s.followers {
		select {
		case <-f.synced:
		case <-ctx.Done():
			return nil
		}
	}
	s.auth.Known()
	if err := s.objects.Make(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	select {
	case <-s.prepared: // every path is installed, including OpenAPI's
		close(s.ready)
	case <-ctx.Done():
		return nil
	}
	return s.objects.Keep(ctx)
}

// withdrawAtStop removes our address from the endpoints of default/kubernetes before the server stops.
func (s *Server) withdrawAtStop(ctx context.Context) error {
	return s.chain.front.AddPreShutdownHook("withdraw-endpoints", func() error {
		ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
		defer cancel()
		return s.objects.Withdraw(ctx)
	})
}
