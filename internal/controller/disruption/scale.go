package disruption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"wherry.dev/internal/controller/claim"
)

var (
	deploymentKind  = appsv1.SchemeGroupVersion.WithKind("Deployment")
	replicaSetKind  = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	controllerKind  = v1.SchemeGroupVersion.WithKind("ReplicationController")
)

// ScaleOf returns the UID and the number of replicas of an object by its subresource /scale.
type ScaleOf func(ctx context.Context, namespace string, ref metav1.OwnerReference) (types.UID, int32, error)

// relearn is how often at most the API server is asked again which kinds there are, because one was
// not known.
const relearn = 30 * time.Second

// scales asks the API server.
type scales struct {
	served discovery.CachedDiscoveryInterface
	mapper *restmapper.DeferredDiscoveryRESTMapper
	client scale.ScalesGetter

	mu      sync.Mutex
	learned time.Time // when it last forgot which kinds there are
}

// Scales returns a ScaleOf that asks the API server, after which kinds there are only when it needs one.
func Scales(cfg *rest.Config) (ScaleOf, error) {
	uncached, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	s := &scales{served: memory.NewMemCacheClient(uncached)}
	s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(s.served)
	s.client, err = scale.NewForConfig(cfg, s.mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(s.served))
	return s.of, err
}

func (s *scales) of(ctx context.Context, namespace string, ref metav1.OwnerReference) (types.UID, int32, error) {
	resource, err := s.resource(ref)
	if errors.As(err, &hopeless{}) && s.forget() {
		resource, err = s.resource(ref)
	}
	if err != nil {
		return "", 0, err
	}
	got, err := s.client.Scales(namespace).Get(ctx, resource, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	return got.UID, got.Spec.Replicas, nil
}

// resource returns the resource of a controller, if that can be scaled.
func (s *scales) resource(ref metav1.OwnerReference) (schema.GroupResource, error) {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	mapping, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return schema.GroupResource{}, hopeless{err}
	}
	if err != nil {
		return schema.GroupResource{}, err
	}
	resource := mapping.Resource.GroupResource()
	if ok, err := hasScale(s.served, mapping.Resource); err != nil || !ok {
		if err == nil {
			err = hopeless{fmt.Errorf("%s does not implement the scale subresource", resource)}
		}
		return resource, err
	}
	return resource, nil
}

// forget reports whether it has forgotten which kinds there are, so that it will ask again.
func (s *scales) forget() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.learned) < relearn {
		return false
	}
	s.learned = time.Now()
	s.mapper.Reset()
	return true
}

func hasScale(served discovery.DiscoveryInterface, r schema.GroupVersionResource) (bool, error) {
	list, err := served.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if err != nil {
		return false, err
	}
	isScale := func(a metav1.APIResource) bool { return a.Name == r.Resource+"/scale" && a.Kind == "Scale" }
	return slices.ContainsFunc(list.APIResources, isScale), nil
}

// hopeless is an error that trying again does not change.
type hopeless struct{ error }

// Unwrap returns the error itself.
func (h hopeless) Unwrap() error { return h.error }

// scaler knows how many replicas the controllers of pods should have.
type scaler struct {
	replicaSets  appslisters.ReplicaSetLister
	deployments  appslisters.DeploymentLister
	statefulSets appslisters.StatefulSetLister
	controllers  corelisters.ReplicationControllerLister
	other        ScaleOf
}

func newScaler(f informers.SharedInformerFactory, other ScaleOf) scaler {
	apps := f.Apps().V1()
	return scaler{
		replicaSets: apps.ReplicaSets().Lister(), deployments: apps.Deployments().Lister(), statefulSets: apps.StatefulSets().Lister(),
		controllers: f.Core().V1().ReplicationControllers().Lister(), other: other,
	}
}

// of returns the scales of all controllers of the pods, by UID. Pods without a controller have none.
func (s scaler) of(ctx context.Context, list []*v1.Pod) (map[types.UID]int32, error) {
	out, seen := map[types.UID]int32{}, map[types.UID]bool{}
	for _, pod := range list {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil || seen[ref.UID] {
			continue
		}
		seen[ref.UID] = true
		uid, n, ok := s.known(pod, *ref)
		if !ok {
			var err error
			if uid, n, err = s.other(ctx, pod.Namespace, *ref); err != nil {
				return nil, err
			}
			if uid != ref.UID {
				return nil, hopeless{fmt.Errorf("found no controllers for pod %q", pod.Name)}
			}
		}
		out[uid] = n
	}
	return out, nil
}

// known looks for a controller in the informers.
func (s scaler) known(pod *v1.Pod, ref metav1.OwnerReference) (types.UID, int32, bool) {
	switch {
	case claim.ControllerOf(pod, replicaSetKind) != nil:
		rs, err := s.replicaSets.ReplicaSets(pod.Namespace).Get(ref.Name)
		if err != nil || rs.UID != ref.UID {
			return "", 0, false
		}
		if owner := claim.ControllerOf(rs, deploymentKind); owner != nil {
			d, err := s.deployments.Deployments(pod.Namespace).Get(owner.Name)
			if err != nil || d.UID != owner.UID {
				return "", 0, false
			}
			return d.UID, orOne(d.Spec.Replicas), true
		}
		return rs.UID, orOne(rs.Spec.Replicas), true
	case claim.ControllerOf(pod, statefulSetKind) != nil:
		set, err := s.statefulSets.StatefulSets(pod.Namespace).Get(ref.Name)
		if err != nil || set.UID != ref.UID {
			return "", 0, false
		}
		return set.UID, orOne(set.Spec.Replicas), true
	case claim.ControllerOf(pod, controllerKind) != nil:
		rc, err := s.controllers.ReplicationControllers(pod.Namespace).Get(ref.Name)
		if err != nil || rc.UID != ref.UID {
			return "", 0, false
		}
		return rc.UID, orOne(rc.Spec.Replicas), true
	}
	return "", 0, false
}

// orOne is the API's default number of replicas.
func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// replicasOf returns how many replicas one of the known controllers should have.
func replicasOf(item any) int32 {
	switch o := item.(type) {
	case *appsv1.ReplicaSet:
		return orOne(o.Spec.Replicas)
	case *appsv1.Deployment:
		return orOne(o.Spec.Replicas)
	case *appsv1.StatefulSet:
		return orOne(o.Spec.Replicas)
	case *v1.ReplicationController:
		return orOne(o.Spec.Replicas)
	}
	return -1 // there is none
}
