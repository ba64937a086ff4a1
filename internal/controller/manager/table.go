package manager

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/clockset"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/attachdetach"
	"wherry.dev/internal/controller/certificates"
	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/controller/clusterinfo"
	"wherry.dev/internal/controller/clusterroleaggregation"
	"wherry.dev/internal/controller/cronjob"
	"wherry.dev/internal/controller/daemonset"
	"wherry.dev/internal/controller/deployment"
	"wherry.dev/internal/controller/devicetainteviction"
	"wherry.dev/internal/controller/disruption"
	"wherry.dev/internal/controller/endpoints"
	"wherry.dev/internal/controller/endpointslice"
	"wherry.dev/internal/controller/endpointslicemirroring"
	"wherry.dev/internal/controller/ephemeralvolume"
	"wherry.dev/internal/controller/expand"
	"wherry.dev/internal/controller/garbagecollector"
	"wherry.dev/internal/controller/horizontalpodautoscaler"
	"wherry.dev/internal/controller/job"
	"wherry.dev/internal/controller/legacytokencleaner"
	"wherry.dev/internal/controller/loadbalancer"
	"wherry.dev/internal/controller/namespace"
	"wherry.dev/internal/controller/nodeipam"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/persistentvolume"
	"wherry.dev/internal/controller/podgc"
	"wherry.dev/internal/controller/protection"
	"wherry.dev/internal/controller/replicaset"
	"wherry.dev/internal/controller/resourceclaim"
	"wherry.dev/internal/controller/resourcequota"
	"wherry.dev/internal/controller/rootca"
	"wherry.dev/internal/controller/serviceaccount"
	"wherry.dev/internal/controller/serviceaccounttoken"
	"wherry.dev/internal/controller/servicecidr"
	"wherry.dev/internal/controller/statefulset"
	"wherry.dev/internal/controller/storageversionmigrator"
	"wherry.dev/internal/controller/tainteviction"
	"wherry.dev/internal/controller/ttlafterfinished"
	"wherry.dev/internal/controller/validatingadmissionpolicystatus"
)

// row is a controller.
type row struct {
	name    string // upstream's, as --controllers has it
	account string // the service account, in kube-system, whose rights it has; "" for those of the manager itself
	build   func(*parts) (controller.Controller, error)
}

// parts are what a controller is built from.
type parts struct {
	Config
	client    clientset.Interface // with the rights of its account
	rest      *rest.Config        // for clients of another sort; nil without an account
	informers informers.SharedInformerFactory
}

// table has the controllers in the order in which they start. A build function that returns nil says
// that the controller has nothing to work with here.
var table = []row{
	// What everything else in a namespace needs
	{"serviceaccount-controller", "service-account-controller", plain(serviceaccount.New)},
	{"serviceaccount-token-controller", "", buildTokens},
	{"clusterrole-aggregation-controller", "clusterrole-aggregation-controller", plain(clusterroleaggregation.New)},
	{"validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status-controller", plain(validatingadmissionpolicystatus.New)},
	{"root-ca-certificate-publisher-controller", "root-ca-cert-publisher", buildRootCA},
	{"kube-apiserver-serving-clustertrustbundle-publisher-controller", "kube-apiserver-serving-clustertrustbundle-publisher", buildTrustBundle},
	{"certificatesigningrequest-signing-controller", "certificate-controller", buildSigner},
	{"bootstrap-signer-controller", "bootstrap-signer", buildSignerOfInfo},
	{"token-cleaner-controller", "token-cleaner", buildCleanerOfTokens},
	{"resourcequota-controller", "resourcequota-controller", buildQuotas},
	{"storage-version-migrator-controller", "storage-version-migrator-controller", buildMigrator},
	{"podcertificaterequest-cleaner-controller", "podcertificaterequestcleaner", plain(certificates.NewPodRequestCleaner)},

	// Services, so that what starts is reached
	{"service-cidr-controller", "service-cidrs-controller", plain(servicecidr.New)},
	{"cluster-dns-controller", "cluster-dns-controller", buildDNS},
	{"endpointslice-controller", "endpointslice-controller", plain(endpointslice.New)},
	{"endpoints-controller", "endpoint-controller", plain(endpoints.New)},
	{"endpointslice-mirroring-controller", "endpointslicemirroring-controller", plain(endpointslicemirroring.New)},
	{"service-lb-controller", "service-controller", buildBalancers},

	// Workloads, those first that others stand on
	{"replicaset-controller", "replicaset-controller", plain(replicaset.New)},
	{"replicationcontroller-controller", "replication-controller", plain(replicaset.NewForReplicationControllers)},
	{"deployment-controller", "deployment-controller", plain(deployment.New)},
	{"statefulset-controller", "statefulset-controller", plain(statefulset.New)},
	{"daemonset-controller", "daemon-set-controller", plain(daemonset.New)},
	{"job-controller", "job-controller", plain(job.New)},
	{"cronjob-controller", "cronjob-controller", buildCronJobs},
	{"horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler", buildAutoscaler},
	{"disruption-controller", "disruption-controller", buildDisruption},
	{"resourceclaim-controller", "resource-claim-controller", buildResourceClaims},

	// Nodes
	{"node-ipam-controller", "node-controller", buildNodeRanges},
	{"node-lifecycle-controller", "node-controller", buildNodeLifecycle},
	{"taint-eviction-controller", "node-controller", plain(tainteviction.New)},
	{"device-taint-eviction-controller", "device-taint-eviction-controller", plain(devicetainteviction.New)},

	// Storage
	{"ephemeral-volume-controller", "ephemeral-volume-controller", plain(ephemeralvolume.New)},
	{"persistentvolume-binder-controller", "persistent-volume-binder", plain(persistentvolume.New)},
	{"persistentvolume-attach-detach-controller", "attachdetach-controller", buildAttachDetach},
	{"persistentvolume-expander-controller", "expand-controller", plain(expand.New)},
	{"persistentvolumeclaim-protection-controller", "pvc-protection-controller", plain(protection.NewForClaims)},
	{"persistentvolume-protection-controller", "pv-protection-controller", plain(protection.NewForVolumes)},
	{"volumeattributesclass-protection-controller", "volumeattributesclass-protection-controller", plain(protection.NewForAttributesClasses)},

	// Pod groups, where they are served
	{"podgroup-protection-controller", "podgroup-protection-controller", plain(protection.NewForPodGroups)},

	// What removes things
	{"pod-garbage-collector-controller", "pod-garbage-collector", buildPodGC},
	{"ttl-after-finished-controller", "ttl-after-finished-controller", buildTTL},
	{"legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner", buildTokenCleaner},
	{"namespace-controller", "namespace-controller", buildNamespace},
	{"garbage-collector-controller", "generic-garbage-collector", buildGarbageCollector},
}

// plain is how most controllers are built.
func plain[C controller.Controller](build func(clientset.Interface, informers.SharedInformerFactory) (C, error)) func(*parts) (controller.Controller, error) {
	return func(p *parts) (controller.Controller, error) { return build(p.client, p.informers) }
}

func buildResourceClaims(p *parts) (controller.Controller, error) {
	return resourceclaim.New(p.client, p.informers, !slices.ContainsFunc(wants["resourceclaim-controller"], p.lacks))
}

func buildRootCA(p *parts) (controller.Controller, error) {
	if p.RootCA == nil {
		return nil, nil
	}
	return rootca.New(p.client, p.Reader, p.informers, p.RootCA)
}

func buildTrustBundle(p *parts) (controller.Controller, error) {
	if p.RootCA == nil {
		return nil, nil
	}
	return rootca.NewPublisher(p.client, p.Reader, p.RootCA)
}

func buildTokens(p *parts) (controller.Controller, error) {
	if p.Tokens == nil {
		return nil, nil
	}
	return serviceaccounttoken.New(p.client, p.informers, p.Tokens, p.RootCA)
}

func buildTokenCleaner(p *parts) (controller.Controller, error) {
	return legacytokencleaner.New(p.client, p.Reader, p.informers, clockset.Watch)
}

func buildSigner(p *parts) (controller.Controller, error) {
	if p.Signer == nil {
		return nil, nil
	}
	var kubelets *certificates.Kubelets
	if p.ApproveServing {
		kubelets = certificates.NewKubelets(p.informers, p.ServerNames)
	}
	return certificates.New(p.client, p.informers, p.Signer, p.options().SigningDuration, kubelets)
}

func buildSignerOfInfo(p *parts) (controller.Controller, error) {
	return clusterinfo.NewSigner(p.client, p.Reader, p.Info)
}

func buildCleanerOfTokens(p *parts) (controller.Controller, error) {
	return clusterinfo.NewCleaner(p.client, p.Reader)
}

func buildDNS(p *parts) (controller.Controller, error) {
	if p.DNS == nil {
		return nil, nil
	}
	return clusterdns.New(p.client, p.informers, *p.DNS)
}

func buildBalancers(p *parts) (controller.Controller, error) {
	options := p.options()
	if options.CloudProvider != "" {
		return nil, nil
	}
	reserved := p.NodePorts
	if reserved == nil {
		reserved = loadbalancer.NodePorts
	}
	return loadbalancer.New(p.client, p.informers, reserved)
}

func buildCronJobs(p *parts) (controller.Controller, error) {
	return cronjob.New(p.client, p.informers, clockset.Watch)
}

func buildTTL(p *parts) (controller.Controller, error) {
	return ttlafterfinished.New(p.client, p.informers, clockset.Watch)
}

func buildAutoscaler(p *parts) (controller.Controller, error) {
	return horizontalpodautoscaler.New(p.client, p.rest, p.informers, p.options().Autoscaler)
}

func buildNodeRanges(p *parts) (controller.Controller, error) {
	options := p.options()
	o, err := options.Ranges.options()
	if err != nil || len(o.Networks) == 0 {
		return nil, err
	}
	return nodeipam.New(p.client, p.informers, o)
}

func buildNodeLifecycle(p *parts) (controller.Controller, error) {
	return nodelifecycle.New(p.client, p.informers, p.options().Nodes)
}

func buildAttachDetach(p *parts) (controller.Controller, error) {
	return attachdetach.New(p.client, p.informers, p.options().Volumes)
}

func buildPodGC(p *parts) (controller.Controller, error) {
	return podgc.New(p.client, p.informers, p.options().TerminatedPods)
}

func buildDisruption(p *parts) (controller.Controller, error) {
	scales, err := disruption.Scales(p.rest)
	if err != nil {
		return nil, err
	}
	return disruption.New(p.client, p.informers, scales)
}

func buildQuotas(p *parts) (controller.Controller, error) {
	meta, err := metadata.NewForConfig(p.rest)
	if err != nil {
		return nil, err
	}
	return resourcequota.New(p.client, meta, p.informers)
}

func buildNamespace(p *parts) (controller.Controller, error) {
	meta, err := metadata.NewForConfig(p.rest)
	if err != nil {
		return nil, err
	}
	return namespace.New(p.client, meta, p.informers)
}

func buildMigrator(p *parts) (controller.Controller, error) {
	meta, err := metadata.NewForConfig(p.rest)
	if err != nil {
		return nil, err
	}
	crds, err := definitions.NewForConfig(p.rest)
	if err != nil {
		return nil, err
	}
	return storageversionmigrator.New(p.client, meta, crds, p.informers)
}

func buildGarbageCollector(p *parts) (controller.Controller, error) {
	meta, err := metadata.NewForConfig(p.rest)
	if err != nil {
		return nil, err
	}
	shared := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	for _, resource := range readAnyway {
		if !p.serves(resource) {
			continue
		}
		generic, err := p.informers.ForResource(resource)
		if err != nil {
			return nil, err
		}
		shared[resource] = generic.Informer()
	}
	return garbagecollector.New(p.client, meta, shared), nil
}

// readAnyway are the kinds of which other controllers read whole objects. Pods and what stands above them
// change the most: a second watch of each, if only of metadata, would cost as much as the first.
var readAnyway = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("pods"),
	corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	corev1.SchemeGroupVersion.WithResource("services"),
	corev1.SchemeGroupVersion.WithResource("endpoints"),
	corev1.SchemeGroupVersion.WithResource("nodes"),
	corev1.SchemeGroupVersion.WithResource("namespaces"),
	corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
	corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	appsv1.SchemeGroupVersion.WithResource("deployments"),
	appsv1.SchemeGroupVersion.WithResource("replicasets"),
	appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	appsv1.SchemeGroupVersion.WithResource("controllerrevisions"),
	batchv1.SchemeGroupVersion.WithResource("jobs"),
	batchv1.SchemeGroupVersion.WithResource("cronjobs"),
	autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
	policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
	coordinationv1.SchemeGroupVersion.WithResource("leases"),
	networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
	networkingv1.SchemeGroupVersion.WithResource("ipaddresses"),
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
}
