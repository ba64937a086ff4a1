package kinds

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapibuilder "k8s.io/kube-openapi/pkg/builder3"
	openapiutil "k8s.io/kube-openapi/pkg/util"

	"wherry.dev/internal/apiserver/lists"
	"wherry.dev/internal/apiserver/scheme"
)

// Install returns a server of all kinds that leaves other requests to next.
func (k *Kinds) Install(generic *genericapiserver.Config, next genericapiserver.DelegationTarget) (*genericapiserver.GenericAPIServer, error) {
	complete := generic.Complete(nil)
	server, err := complete.New("wherry-apiserver", next)
	if err != nil {
		return nil, err
	}
	i := &installation{
		Kinds: k, server: server, cfg: complete, storages: k.endpoints(),
		info: genericapiserver.NewDefaultAPIGroupInfo(corev1.GroupName, k.Scheme, runtime.NewParameterCodec(k.Scheme), k.Codecs),
	}
	i.info.NegotiatedSerializer = lists.Codecs(i.info.NegotiatedSerializer)
	if err := i.groups(); err != nil {
		server.Destroy()
		return nil, err
	}
	return server, nil
}

// installation puts all groups into a server. The library's own does the same, but lets nobody choose how
// objects become what managed fields are computed from.
type installation struct {
	*Kinds
	server   *genericapiserver.GenericAPIServer
	cfg      genericapiserver.CompletedConfig
	storages map[schema.GroupVersion]map[string]rest.Storage
	info     genericapiserver.APIGroupInfo // what is the same for all groups
	types    managedfields.TypeConverter
}

func (i *installation) groups() error {
	byGroup, order := i.versions()
	if len(byGroup[corev1.GroupName]) == 0 {
		return errors.New("install API groups: there is no core group")
	}
	var err error
	if i.types, err = i.converter(); err != nil {
		return fmt.Errorf("schemas of the API groups: %w", err)
	}
	for _, group := range order {
		if err := i.group(group, byGroup[group]); err != nil {
			return fmt.Errorf("install API group %q: %w", group, err)
		}
	}
	return nil
}

// versions returns the versions of each group in which something is served, the preferred one first, and the
// groups in order.
func (i *installation) versions() (byGroup map[string][]schema.GroupVersion, order []string) {
	byGroup = map[string][]schema.GroupVersion{}
	for _, gv := range scheme.Groups {
		if _, seen := byGroup[gv.Group]; seen {
			continue
		}
		served := slices.DeleteFunc(i.Scheme.PrioritizedVersionsForGroup(gv.Group), func(v schema.GroupVersion) bool { return len(i.storages[v]) == 0 })
		if byGroup[gv.Group] = served; len(served) > 0 {
			order = append(order, gv.Group)
		}
	}
	return byGroup, order
}

// converter returns what managed fields of all kinds are computed with.
func (i *installation) converter() (managedfields.TypeConverter, error) {
	var names []string
	for gv, storages := range i.storages {
		for _, storage := range storages {
			kind, err := genericapi.GetResourceKind(gv, storage, i.Scheme)
			if err != nil {
				return nil, err
			}
			sample, err := i.Scheme.New(kind)
			if err != nil {
				return nil, err
			}
			names = append(names, openapiutil.GetCanonicalTypeName(sample))
		}
	}
	models, err := openapibuilder.BuildOpenAPIDefinitionsForResources(i.cfg.OpenAPIV3Config, names...)
	if err != nil {
		return nil, err
	}
	types, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		return nil, err
	}
	return &trusting{TypeConverter: types}, nil
}

// group installs a group: its versions, and the list of them. That of the core has a prefix of its own.
func (i *installation) group(name string, versions []schema.GroupVersion) error {
	root, tell := genericapiserver.APIGroupPrefix, i.server.AggregatedDiscoveryGroupManager
	if name == corev1.GroupName {
		root, tell = genericapiserver.DefaultLegacyAPIPrefix, i.server.AggregatedLegacyDiscoveryGroupManager
	}
	for _, gv := range versions {
		resources, err := i.version(root, gv, versions)
		if err != nil {
			return err
		}
		tell.AddGroupVersion(name, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: gv.Version, Resources: resources,
		})
	}
	container := i.server.Handler.GoRestfulContainer
	if name == corev1.GroupName {
		handler := discovery.NewLegacyRootAPIHandler(i.cfg.DiscoveryAddresses, i.server.Serializer, root)
		container.Add(aggregated.WrapAggregatedDiscoveryToHandler(handler, tell, tell).GenerateWebService(root, metav1.APIVersions{}))
		return nil
	}
	group := metav1.APIGroup{Name: name, PreferredVersion: forDiscovery(versions[0])}
	for _, gv := range versions {
		group.Versions = append(group.Versions, forDiscovery(gv))
	}
	i.server.DiscoveryGroupManager.AddGroup(group)
	container.Add(discovery.NewAPIGroupHandler(i.server.Serializer, group).WebService())
	return nil
}

func forDiscovery(gv schema.GroupVersion) metav1.GroupVersionForDiscovery {
	return metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
}

// version installs the resources of a version. all are the versions of its group.
func (i *installation) version(root string, gv schema.GroupVersion, all []schema.GroupVersion) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	version := genericapi.APIGroupVersion{
		Root: root, GroupVersion: gv, Storage: i.storages[gv], AllServedVersionsByResource: map[string][]string{},
		OptionsExternalVersion: i.info.OptionsExternalVersion, MetaGroupVersion: i.info.MetaGroupVersion,
		Serializer: i.info.NegotiatedSerializer, ParameterCodec: i.info.ParameterCodec,
		Typer: i.Scheme, Creater: i.Scheme, Convertor: i.Scheme, ConvertabilityChecker: i.Scheme, Defaulter: i.Scheme,
		Namer: runtime.Namer(meta.NewAccessor()), UnsafeConvertor: runtime.UnsafeObjectConvertor(i.Scheme), TypeConverter: i.types,
		EquivalentResourceRegistry: i.server.EquivalentResourceRegistry, Authorizer: i.server.Authorizer, Admit: i.cfg.AdmissionControl,
		MinRequestTimeout: time.Duration(i.cfg.MinRequestTimeout) * time.Second, MaxRequestBodyBytes: i.cfg.MaxRequestBodyBytes,
	}
	for _, other := range all {
		for resource := range i.storages[other] {
			version.AllServedVersionsByResource[resource] = append(version.AllServedVersionsByResource[resource], other.String())
		}
	}
	resources, infos, err := version.InstallREST(i.server.Handler.GoRestfulContainer)
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", path.Join(root, gv.String()), err)
	}
	if gates := i.server.FeatureGate; gates.Enabled(features.StorageVersionAPI) && gates.Enabled(features.APIServerIdentity) {
		i.server.StorageVersionManager.AddResourceInfo(infos...)
	}
	for resource, storage := range i.storages[gv] {
		if ready, ok := storage.(rest.StorageWithReadiness); ok {
			i.server.StorageReadinessHook.RegisterStorage(metav1.GroupVersionResource{Group: gv.Group, Version: gv.Version, Resource: resource}, ready)
		}
		i.server.RegisterDestroyFunc(storage.Destroy)
	}
	return resources, nil
}
