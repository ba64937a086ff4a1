package resources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/namespace"
	"wherry.dev/internal/apiserver/registry/node"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/service"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func nodes(deps Deps) registry.Row[*corev1.Node] {
	return registry.Row[*corev1.Node]{
		Resource:   gvr(corev1.SchemeGroupVersion, "nodes"),
		Kind:       "Node",
		Singular:   "node",
		ShortNames: []string{"no"},
		New:        func() *corev1.Node { return &corev1.Node{} },
		NewList:    list[corev1.NodeList](),
		Table:      printers.Nodes,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Node]{
			Drop:           deps.Features.Node,
			Update:         func(_ context.Context, n, old *corev1.Node) { n.Status = old.Status },
			Warn:           warnings.Node,
			Validate:       onCreate(validation.Node),
			ValidateUpdate: onUpdate(validation.NodeUpdate),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[*corev1.Node]{
			Drop:           deps.Features.NodeStatus,
			Update:         func(_ context.Context, n, old *corev1.Node) { n.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.NodeUpdate),
			Reset:          []string{"spec"},
		},
		Fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": boolString(n.Spec.Unschedulable)}
		},
		FieldLabels: []string{"spec.unschedulable"},
		Endpoints: func(*registry.Endpoints[*corev1.Node]) map[string]rest.Storage {
			return map[string]rest.Storage{"proxy": node.NewProxy(deps.Kubelets)}
		},
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
		Table:      printers.Namespaces,
		CheckName:  apivalidation.ValidateNamespaceName,
		Strategy: registry.Strategy[*corev1.Namespace]{
			Create:         namespace.PrepareCreate,
			Update:         namespace.PrepareUpdate,
			Validate:       onCreate(validation.Namespace),
			ValidateUpdate: always(validation.Namespace),
			Canonicalize:   namespace.Canonicalize,
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.Namespace]{
			Update:         func(_ context.Context, obj, old *corev1.Namespace) { obj.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.NamespaceStatus),
			Reset:          []string{"spec"},
		},
		Fields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
		},
		FieldLabels: []string{"status.phase", "name"},
		Customize: func(main, status *genericregistry.Store) {
			main.ShouldDeleteDuringUpdate = namespace.DeleteDuringUpdate
			status.ShouldDeleteDuringUpdate = namespace.DeleteDuringUpdate
		},
		Endpoints: func(row *registry.Endpoints[*corev1.Namespace]) map[string]rest.Storage {
			return map[string]rest.Storage{
				"": namespace.NewStore(row.Main),
				"finalize": row.Update(registry.Strategy[*corev1.Namespace]{
					Update:         func(_ context.Context, obj, old *corev1.Namespace) { obj.Status = old.Status },
					ValidateUpdate: always(validation.NamespaceFinalize),
					Reset:          []string{"status"},
				}),
			}
		},
	}
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
		Table:      printers.ConfigMaps,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.ConfigMap]{
			Validate:       onCreate(validation.ConfigMap),
			ValidateUpdate: onUpdate(validation.ConfigMapUpdate),
		},
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
		Table:      printers.Secrets,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Secret]{
			Update: func(_ context.Context, obj, old *corev1.Secret) {
				if obj.Type == "" {
					obj.Type = old.Type
				}
			},
			Validate:       onCreate(validation.Secret),
			ValidateUpdate: onUpdate(validation.SecretUpdate),
			Warn:           warnings.Secret,
		},
		Fields:      func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} },
		FieldLabels: []string{"type"},
	}
}

func serviceAccounts(deps Deps) registry.Row[*corev1.ServiceAccount] {
	return registry.Row[*corev1.ServiceAccount]{
		Resource:   gvr(corev1.SchemeGroupVersion, "serviceaccounts"),
		Kind:       "ServiceAccount",
		Singular:   "serviceaccount",
		ShortNames: []string{"sa"},
		Namespaced: true,
		New:        func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList:    list[corev1.ServiceAccountList](),
		Table:      printers.ServiceAccounts,
		CheckName:  apivalidation.ValidateServiceAccountName,
		Strategy: registry.Strategy[*corev1.ServiceAccount]{
			Create: func(_ context.Context, a *corev1.ServiceAccount) { onlyNames(a.Secrets) },
			Update: func(_ context.Context, a, _ *corev1.ServiceAccount) { onlyNames(a.Secrets) },
		},
		ReturnDeleted: true,
		Endpoints: func(*registry.Endpoints[*corev1.ServiceAccount]) map[string]rest.Storage {
			return map[string]rest.Storage{"token": deps.Tokens}
		},
	}
}

// onlyNames leaves the names of secrets: they are in the account's namespace.
func onlyNames(secrets []corev1.ObjectReference) {
	for i := range secrets {
		secrets[i] = corev1.ObjectReference{Name: secrets[i].Name}
	}
}

func services(deps Deps) registry.Row[*corev1.Service] {
	return registry.Row[*corev1.Service]{
		Resource:   gvr(corev1.SchemeGroupVersion, "services"),
		Kind:       "Service",
		Singular:   "service",
		ShortNames: []string{"svc"},
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() *corev1.Service { return &corev1.Service{} },
		NewList:    list[corev1.ServiceList](),
		Table:      printers.Services,
		CheckName:  apivalidation.NameIsDNSLabel, // KEP-5311
		Strategy: registry.Strategy[*corev1.Service]{
			Create:         func(_ context.Context, s *corev1.Service) { s.Status = corev1.ServiceStatus{} },
			Update:         func(_ context.Context, s, old *corev1.Service) { s.Status = old.Status },
			Validate:       onCreate(validation.Service),
			ValidateUpdate: onUpdate(validation.ServiceUpdate),
			Warn:           warnings.Service,
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.Service]{
			Update:         func(_ context.Context, s, old *corev1.Service) { s.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.ServiceStatusUpdate),
			Warn:           warnings.LoadBalancer,
			Reset:          []string{"spec"},
		},
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		FieldLabels: []string{"spec.clusterIP", "spec.type"},
		Customize:   func(main, _ *genericregistry.Store) { deps.Services.Customize(main) },
		Endpoints: func(e *registry.Endpoints[*corev1.Service]) map[string]rest.Storage {
			return map[string]rest.Storage{"": service.NewREST(e.Main, deps.Services), "proxy": service.NewProxy(deps.Lookup, deps.Kubelets.Others())}
		},
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
		Table:      printers.Endpoints,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Endpoints]{
			Validate:       exceptOwn(onCreate(validation.Endpoints)),
			ValidateUpdate: exceptOwnUpdate(always(validation.Endpoints)),
		},
	}
}

func limitRanges() registry.Row[*corev1.LimitRange] {
	return registry.Row[*corev1.LimitRange]{
		Resource:   gvr(corev1.SchemeGroupVersion, "limitranges"),
		Kind:       "LimitRange",
		Singular:   "limitrange",
		ShortNames: []string{"limits"},
		Namespaced: true,
		New:        func() *corev1.LimitRange { return &corev1.LimitRange{} },
		NewList:    list[corev1.LimitRangeList](),
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.LimitRange]{
			Validate:       onCreate(validation.LimitRange),
			ValidateUpdate: always(validation.LimitRange),
			Create: func(_ context.Context, l *corev1.LimitRange) {
				if l.Name == "" {
					l.Name = string(uuid.NewUUID())
				}
			},
		},
	}
}

func boolString(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
