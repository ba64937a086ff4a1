// Package backing knows which pods back which services, and which slices belong to a service, by
// indexes of informers. The controllers of endpoints share it.
//
// A service is indexed by one pair of its selector only: a pod can match no other services than
// those whose pair is among its own labels. So a change of a pod costs what its labels cost, and not
// what all services of its namespace cost.
package backing

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	endpointsliceutil "k8s.io/endpointslice/util"
)

const (
	bySelector = "wherry/selector" // services by namespace and one pair of the selector
	byService  = "wherry/service"  // slices by the key of their service
)

// IndexServices gives an informer of services the index that Services uses.
func IndexServices(informer cache.SharedIndexInformer) error {
	return addIndex(informer, bySelector, func(item any) ([]string, error) {
		svc, ok := item.(*v1.Service)
		if !ok {
			return nil, fmt.Errorf("%T is not a service", item)
		}
		if !Selects(svc) {
			return nil, nil
		}
		k := slices.Min(slices.Collect(maps.Keys(svc.Spec.Selector)))
		return []string{pair(svc.Namespace, k, svc.Spec.Selector[k])}, nil
	})
}

// IndexSlices gives an informer of endpoint slices the index that Slices uses.
func IndexSlices(informer cache.SharedIndexInformer) error {
	return addIndex(informer, byService, func(item any) ([]string, error) {
		s, ok := item.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, fmt.Errorf("%T is not an endpoint slice", item)
		}
		if key := ServiceOf(s); key != "" {
			return []string{key}, nil
		}
		return nil, nil
	})
}

func addIndex(informer cache.SharedIndexInformer, name string, f cache.IndexFunc) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: f})
}

func pair(namespace, key, value string) string { return namespace + "/" + key + "=" + value }

// Selects reports whether the endpoints of a service follow from its selector. Those of others are
// written by whoever made the service.
func Selects(svc *v1.Service) bool {
	return len(svc.Spec.Selector) > 0 && svc.Spec.Type != v1.ServiceTypeExternalName
}

// ServiceOf returns the key of the service that a slice belongs to; "" if it names none.
func ServiceOf(s *discoveryv1.EndpointSlice) string {
	if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
		return s.Namespace + "/" + name
	}
	return ""
}

// Services returns the keys of the services that a pod's change concerns. Either state may be nil.
func Services(services cache.Indexer, old, pod *v1.Pod) ([]string, error) {
	if !changed(old, pod) {
		return nil, nil
	}
	keys := map[string]bool{}
	for _, p := range []*v1.Pod{old, pod} {
		if p == nil {
			continue
		}
		for k, v := range p.Labels {
			items, err := services.ByIndex(bySelector, pair(p.Namespace, k, v))
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				if svc := item.(*v1.Service); labels.SelectorFromValidatedSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
					keys[svc.Namespace+"/"+svc.Name] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(keys)), nil
}

// changed reports whether two states of a pod can differ as endpoints.
func changed(a, b *v1.Pod) bool {
	if a == nil || b == nil {
		return true
	}
	same := maps.Equal(a.Labels, b.Labels) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Spec.NodeName == b.Spec.NodeName &&
		a.Spec.Hostname == b.Spec.Hostname && a.Spec.Subdomain == b.Spec.Subdomain &&
		over(a) == over(b) &&
		endpointsliceutil.IsPodReady(a) == endpointsliceutil.IsPodReady(b) &&
		a.Status.PodIP == b.Status.PodIP && slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
	return !same
}

// over reports whether nothing of a pod runs any more.
func over(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed }

// Pods returns the pods that a service selects.
func Pods(pods cache.Indexer, svc *v1.Service) ([]*v1.Pod, error) {
	items, err := pods.ByIndex(cache.NamespaceIndex, svc.Namespace)
	if err != nil {
		return nil, err
	}
	selector := labels.SelectorFromValidatedSet(svc.Spec.Selector)
	var out []*v1.Pod
	for _, item := range items {
		if p, ok := item.(*v1.Pod); ok && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out, nil
}

// Slices returns the slices of the service with the key that the manager manages; those of all
// managers if it is "".
func Slices(indexer cache.Indexer, key, manager string) ([]*discoveryv1.EndpointSlice, error) {
	items, err := indexer.ByIndex(byService, key)
	if err != nil {
		return nil, err
	}
	var out []*discoveryv1.EndpointSlice
	for _, item := range items {
		if s, ok := item.(*discoveryv1.EndpointSlice); ok && (manager == "" || s.Labels[discoveryv1.LabelManagedBy] == manager) {
			out = append(out, s)
		}
	}
	return out, nil
}
