package resources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"

	"wherry.dev/internal/apiserver/registry"
)

func core(deps Deps) []registry.Definition {
	return []registry.Definition{
		pods(deps), nodes(), namespaces(), events(), configMaps(), secrets(), serviceAccounts(), services(), endpoints(),
	}
}

func nodes() registry.Row[*corev1.Node] {
	return registry.Row[*corev1.Node]{
		Resource:   gvr(corev1.SchemeGroupVersion, "nodes"),
		Kind:       "Node",
		Singular:   "node",
		ShortNames: []string{"no"},
		New:        func() *corev1.Node { return &corev1.Node{} },
		NewList:    list[corev1.NodeList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Node]{
			Update: func(_ context.Context, obj, old *corev1.Node) { obj.Status = old.Status },
			Reset:  []string{"status"},
		},
		Status: &registry.Strategy[*corev1.Node]{
			Update: func(_ context.Context, obj, old *corev1.Node) { obj.Spec = old.Spec },
			Reset:  []string{"spec"},
		},
		Fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": boolString(n.Spec.Unschedulable)}
		},
		FieldLabels: []string{"spec.unschedulable"},
	}
}

func namespaces() registry.Row[*corev1.Namespace] {
	return registry.Row[*corev1.Namespace]{
		Resource:   gvr(corev1.SchemeGroupVersion, "namespaces"),
		Kind:       "Namespace",
		Singular:   "namespace",
		ShortNames: []string{"ns"},
		New:        func() *corev1.Namespace { return &corev1.Namespace{} },
		NewList:    list[corev1.NamespaceList](),
		CheckName:  validation.ValidateNamespaceName,
		Strategy: registry.Strategy[*corev1.Namespace]{
			Create: prepareNamespace,
			Update: func(_ context.Context, obj, old *corev1.Namespace) {
				obj.Spec.Finalizers, obj.Status = old.Spec.Finalizers, old.Status
			},
			Reset: []string{"status"},
		},
		Status: &registry.Strategy[*corev1.Namespace]{
			Update: func(_ context.Context, obj, old *corev1.Namespace) { obj.Spec = old.Spec },
			Reset:  []string{"spec"},
		},
		Fields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
		},
		FieldLabels: []string{"status.phase", "name"},
	}
}

func prepareNamespace(_ context.Context, ns *corev1.Namespace) {
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	for _, f := range ns.Spec.Finalizers {
		if f == corev1.FinalizerKubernetes {
			return
		}
	}
	ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

func configMaps() registry.Row[*corev1.ConfigMap] {
	return registry.Row[*corev1.ConfigMap]{
		Resource:   gvr(corev1.SchemeGroupVersion, "configmaps"),
		Kind:       "ConfigMap",
		Singular:   "configmap",
		ShortNames: []string{"cm"},
		Namespaced: true,
		New:        func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		NewList:    list[corev1.ConfigMapList](),
		CheckName:  validation.NameIsDNSSubdomain,
	}
}

func secrets() registry.Row[*corev1.Secret] {
	return registry.Row[*corev1.Secret]{
		Resource:   gvr(corev1.SchemeGroupVersion, "secrets"),
		Kind:       "Secret",
		Singular:   "secret",
		Namespaced: true,
		New:        func() *corev1.Secret { return &corev1.Secret{} },
		NewList:    list[corev1.SecretList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Fields: func(s *corev1.Secret) fields.Set {
			return fields.Set{"type": string(s.Type)}
		},
		FieldLabels: []string{"type"},
	}
}

func serviceAccounts() registry.Row[*corev1.ServiceAccount] {
	return registry.Row[*corev1.ServiceAccount]{
		Resource:   gvr(corev1.SchemeGroupVersion, "serviceaccounts"),
		Kind:       "ServiceAccount",
		Singular:   "serviceaccount",
		ShortNames: []string{"sa"},
		Namespaced: true,
		New:        func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList:    list[corev1.ServiceAccountList](),
		CheckName:  validation.ValidateServiceAccountName,
	}
}

func services() registry.Row[*corev1.Service] {
	return registry.Row[*corev1.Service]{
		Resource:   gvr(corev1.SchemeGroupVersion, "services"),
		Kind:       "Service",
		Singular:   "service",
		ShortNames: []string{"svc"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() *corev1.Service { return &corev1.Service{} },
		NewList:    list[corev1.ServiceList](),
		CheckName:  validation.NameIsDNS1035Label,
		Strategy: registry.Strategy[*corev1.Service]{
			Create: func(_ context.Context, s *corev1.Service) { s.Status = corev1.ServiceStatus{} },
			Update: func(_ context.Context, s, old *corev1.Service) { s.Status = old.Status },
			Reset:  []string{"status"},
		},
		Status: &registry.Strategy[*corev1.Service]{
			Update: func(_ context.Context, s, old *corev1.Service) { s.Spec = old.Spec },
			Reset:  []string{"spec"},
		},
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		FieldLabels: []string{"spec.clusterIP", "spec.type"},
	}
}

func endpoints() registry.Row[*corev1.Endpoints] {
	return registry.Row[*corev1.Endpoints]{
		Resource:   gvr(corev1.SchemeGroupVersion, "endpoints"),
		Kind:       "Endpoints",
		Singular:   "endpoints",
		ShortNames: []string{"ep"},
		Namespaced: true,
		New:        func() *corev1.Endpoints { return &corev1.Endpoints{} },
		NewList:    list[corev1.EndpointsList](),
		CheckName:  validation.NameIsDNSSubdomain,
	}
}

// eventTTL is how long an event is kept, in seconds (--event-ttl's default).
const eventTTL = 3600

func events() registry.Row[*corev1.Event] {
	return registry.Row[*corev1.Event]{
		Resource:   gvr(corev1.SchemeGroupVersion, "events"),
		Kind:       "Event",
		Singular:   "event",
		ShortNames: []string{"ev"},
		Namespaced: true,
		New:        func() *corev1.Event { return &corev1.Event{} },
		NewList:    list[corev1.EventList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy:   registry.Strategy[*corev1.Event]{CreateOnUpdate: true},
		TTL:        func(*corev1.Event) uint64 { return eventTTL },
		Fields:     eventFields,
		FieldLabels: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type",
		},
	}
}

func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

func boolString(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
