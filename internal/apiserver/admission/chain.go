package admission

import (
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/apiserver/registry"
)

// Deps are what plugins stand on.
type Deps struct {
	Lookup     *registry.Lookup
	Authorizer authorizer.Authorizer
	// Stay is what pods tolerate that say nothing else.
	Stay TolerationSeconds
	// Room is what roomForGrowth calls.
	Room func() (int64, error)
	// Client is the server's client of itself.
	Client func() (kubernetes.Interface, error)
	// Metadata is such a client for the metadata of all objects.
	Metadata func() (metadata.Interface, error)
	// BeginTurn is storage.Backend's.
	BeginTurn beginTurn
	// Kinds tells the resources of a kind.
	Kinds meta.RESTMapper
	// Features are those that are on.
	Features gated.Features
	// Hook returns a plugin that runs webhooks or policies.
	Hook func(name string, config io.Reader) (admission.Interface, error)
}

// row is a plugin.
type row struct {
	name  string
	on    bool // unless it is disabled; the others have to be enabled
	build builder
}

// builder makes a plugin from what it stands on and its configuration, which is nil if there is none.
type builder func(*Deps, io.Reader) (admission.Interface, error)

// table has the plugins in the order in which they run, with upstream's names, order and defaults
// (AllOrderedPlugins and DefaultOffAdmissionPlugins of kube-apiserver 1.36).
var table = []row{
	{"AlwaysAdmit", false, free(alwaysAdmit{})},
	{"NamespaceAutoProvision", false, plain(func(d *Deps) admission.Interface { return &namespaceAutoProvision{d.Lookup, d.Client} })},
	{"NamespaceLifecycle", true, plain(func(d *Deps) admission.Interface { return newNamespaceLifecycle(d.Lookup) })},
	{"NamespaceExists", false, plain(func(d *Deps) admission.Interface { return &namespaceExists{d.Lookup} })},
	{"LimitPodHardAntiAffinityTopology", false, free(limitPodHardAntiAffinityTopology{})},
	{"LimitRanger", true, plain(func(d *Deps) admission.Interface {
		return &limitRanger{registry.Keep[*corev1.LimitRange](d.Lookup, limitsResource)}
	})},
	{"ServiceAccount", true, plain(func(d *Deps) admission.Interface { return &serviceAccount{d.Lookup} })},
	{"NodeRestriction", true, plain(func(d *Deps) admission.Interface { return &nodeRestriction{d.Lookup, d.Authorizer} })},
	{"TaintNodesByCondition", true, free(taintNodesByCondition{})},
	{"AlwaysPullImages", false, free(alwaysPullImages{})},
	{"ImagePolicyWebhook", false, func(_ *Deps, config io.Reader) (admission.Interface, error) { return newImagePolicyWebhook(config) }},
	{"PodSecurity", true, func(d *Deps, config io.Reader) (admission.Interface, error) { return newPodSecurity(d.Lookup, config) }},
	{"PodNodeSelector", false, func(d *Deps, config io.Reader) (admission.Interface, error) {
		return newPodNodeSelector(d.Lookup, config)
	}},
	{"Priority", true, plain(func(d *Deps) admission.Interface {
		return &priority{registry.Keep[*schedulingv1.PriorityClass](d.Lookup, priorityResource), d.Features.GroupPreemption}
	})},
	{"DefaultTolerationSeconds", true, plain(func(d *Deps) admission.Interface { return defaultTolerationSeconds{d.Stay} })},
	{"PodTolerationRestriction", false, func(d *Deps, config io.Reader) (admission.Interface, error) {
		return newPodTolerationRestriction(d.Lookup, config)
	}},
	{"EventRateLimit", false, func(_ *Deps, config io.Reader) (admission.Interface, error) {
		return newEventRateLimit(config, time.Now)
	}},
	{"ExtendedResourceToleration", false, free(extendedResourceToleration{})},
	{"DefaultStorageClass", true, plain(func(d *Deps) admission.Interface { return &defaultStorageClass{d.Lookup} })},
	{"StorageObjectInUseProtection", true, free(protection{
		claimsResource: "kubernetes.io/pvc-protection", volumesResource: "kubernetes.io/pv-protection", volumeAttributes: "kubernetes.io/vac-protection",
	})},
	{"PodGroupProtection", true, free(protection{groupsResource: "scheduling.k8s.io/podgroup-protection"})},
	{"OwnerReferencesPermissionEnforcement", false, plain(func(d *Deps) admission.Interface {
		return &ownerReferencesPermissionEnforcement{d.Authorizer, d.Kinds}
	})},
	{"PersistentVolumeClaimResize", true, plain(func(d *Deps) admission.Interface { return &persistentVolumeClaimResize{d.Lookup} })},
	{"RuntimeClass", true, plain(func(d *Deps) admission.Interface { return &runtimeClass{d.Lookup} })},
	{"CertificateApproval", true, plain(func(d *Deps) admission.Interface { return &certificateApproval{d.Authorizer} })},
	{"CertificateSigning", true, plain(func(d *Deps) admission.Interface { return &certificateSigning{d.Authorizer} })},
	{"ClusterTrustBundleAttest", true, plain(func(d *Deps) admission.Interface { return &clusterTrustBundleAttest{d.Authorizer} })},
	{"CertificateSubjectRestriction", true, free(certificateSubjectRestriction{})},
	{"DefaultIngressClass", true, plain(func(d *Deps) admission.Interface { return &defaultIngressClass{d.Lookup} })},
	{"DenyServiceExternalIPs", false, free(denyServiceExternalIPs{})},
	{"PodTopologyLabels", true, plain(func(d *Deps) admission.Interface { return &podTopologyLabels{d.Lookup} })},
	{"NodeDeclaredFeatureValidator", true, plain(func(d *Deps) admission.Interface { return &nodeDeclaredFeatureValidator{d.Lookup} })},
	{"PodResizeValidator", true, plain(func(d *Deps) admission.Interface { return &podResize{d.Lookup} })},
	// Webhooks and policies are asked about what all others have made of an object. What counts, and
	// what refuses everything, comes last.
	hook("MutatingAdmissionPolicy"), hook("MutatingAdmissionWebhook"), hook("ValidatingAdmissionPolicy"), hook("ValidatingAdmissionWebhook"),
	{"ResourceQuota", true, plain(func(d *Deps) admission.Interface { return newResourceQuota(d.Lookup, d.Metadata, d.BeginTurn) })},
	{"AlwaysDeny", false, free(alwaysDeny{})},
}

// hook is the row of a plugin that runs what users add.
func hook(name string) row {
	return row{name, true, func(d *Deps, config io.Reader) (admission.Interface, error) { return d.Hook(name, config) }}
}

// free is how plugins are built that stand on nothing, plain how those are that need no configuration.
func free(p admission.Interface) builder {
	return func(*Deps, io.Reader) (admission.Interface, error) { return p, nil }
}

func plain(build func(*Deps) admission.Interface) builder {
	return func(d *Deps, _ io.Reader) (admission.Interface, error) { return build(d), nil }
}

// Chain returns the selected plugins. An error is one of their configuration. How long each of them takes, and
// all together, is measured in upstream's metrics.
func Chain(d Deps, s Selection) (admission.Interface, error) {
	config, err := s.configuration()
	if err != nil {
		return nil, err
	}
	plugins := admission.NewPlugins()
	for _, r := range table {
		plugins.Register(r.name, func(config io.Reader) (admission.Interface, error) { return r.build(&d, config) })
	}
	measured := admission.DecoratorFunc(metrics.WithControllerMetrics)
	chain, err := plugins.NewFromPlugins(s.names(), config, admission.PluginInitializers{}, measured)
	if err != nil {
		return nil, err
	}
	return metrics.WithStepMetrics(honest{admission.NewChainHandler(roomForGrowth{d.Room}, chain)}), nil
}
