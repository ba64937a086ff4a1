package manager

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// needs are the resources without which a controller cannot run: those that it reads from informers, which
// would never have seen all objects, and those that it writes in any case. A test compares them with the informers
// that each controller asks for.
var needs = map[string][]schema.GroupVersionResource{
	"serviceaccount-controller":                                      core("namespaces", "serviceaccounts"),
	"serviceaccount-token-controller":                                core("serviceaccounts", "secrets"),
	"clusterrole-aggregation-controller":                             of("rbac.authorization.k8s.io/v1", "clusterroles"),
	"validatingadmissionpolicy-status-controller":                    of("admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
	"root-ca-certificate-publisher-controller":                       core("namespaces", "configmaps"),
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": of("certificates.k8s.io/v1", "clustertrustbundles"),
	"certificatesigningrequest-signing-controller":                   join(of("certificates.k8s.io/v1", "certificatesigningrequests"), core("nodes"), of("discovery.k8s.io/v1", "endpointslices")),
	"bootstrap-signer-controller":                                    core("secrets", "configmaps"),
	"token-cleaner-controller":                                       core("secrets"),
	"resourcequota-controller":                                       core("resourcequotas", "pods", "services", "persistentvolumeclaims", "replicationcontrollers"),
	"storage-version-migrator-controller":                            of("storagemigration.k8s.io/v1", "storageversionmigrations"),
	"podcertificaterequest-cleaner-controller":                       of("certificates.k8s.io/v1", "podcertificaterequests"),
	"service-cidr-controller":                                        of("networking.k8s.io/v1", "servicecidrs", "ipaddresses"),
	"cluster-dns-controller":                                         join(core("services", "nodes"), of("discovery.k8s.io/v1", "endpointslices")),
	"endpointslice-controller":                                       join(core("services", "pods", "nodes"), of("discovery.k8s.io/v1", "endpointslices")),
	"endpoints-controller":                                           core("services", "pods", "endpoints"),
	"endpointslice-mirroring-controller":                             join(core("services", "endpoints"), of("discovery.k8s.io/v1", "endpointslices")),
	"service-lb-controller":                                          join(core("services", "nodes"), of("discovery.k8s.io/v1", "endpointslices")),
	"replicaset-controller":                                          join(core("pods"), apps("replicasets")),
	"replicationcontroller-controller":                               core("pods", "replicationcontrollers"),
	"deployment-controller":                                          join(core("pods"), apps("deployments", "replicasets")),
	"statefulset-controller":                                         join(core("pods", "persistentvolumeclaims"), apps("statefulsets", "controllerrevisions")),
	"daemonset-controller":                                           join(core("pods", "nodes"), apps("daemonsets", "controllerrevisions")),
	"job-controller":                                                 join(core("pods"), batch("jobs")),
	"cronjob-controller":                                             batch("cronjobs", "jobs"),
	"horizontal-pod-autoscaler-controller":                           join(core("pods"), of(autoscalingv2.SchemeGroupVersion.String(), "horizontalpodautoscalers")),
	"disruption-controller":                                          join(core("pods", "replicationcontrollers"), apps("deployments", "replicasets", "statefulsets"), of("policy/v1", "poddisruptionbudgets")),
	"resourceclaim-controller":                                       join(core("pods"), of("resource.k8s.io/v1", "resourceclaims", "resourceclaimtemplates")),
	"node-ipam-controller":                                           core("nodes"),
	"node-lifecycle-controller":                                      join(core("pods", "nodes"), of("coordination.k8s.io/v1", "leases")),
	"taint-eviction-controller":                                      core("pods", "nodes"),
	"device-taint-eviction-controller":                               join(core("pods"), of("resource.k8s.io/v1", "resourceclaims", "resourceslices", "devicetaintrules")),
	"ephemeral-volume-controller":                                    core("pods", "persistentvolumeclaims"),
	"persistentvolume-binder-controller":                             join(core("persistentvolumes", "persistentvolumeclaims", "pods"), of("storage.k8s.io/v1", "storageclasses")),
	"persistentvolume-attach-detach-controller":                      join(core("pods", "nodes", "persistentvolumes", "persistentvolumeclaims"), of("storage.k8s.io/v1", "csidrivers", "volumeattachments")),
	"persistentvolume-expander-controller":                           core("persistentvolumes", "persistentvolumeclaims"),
	"persistentvolumeclaim-protection-controller":                    core("pods", "persistentvolumeclaims"),
	"persistentvolume-protection-controller":                         core("persistentvolumes"),
	"volumeattributesclass-protection-controller":                    join(core("persistentvolumes", "persistentvolumeclaims"), of("storage.k8s.io/v1", "volumeattributesclasses")),
	"podgroup-protection-controller":                                 join(core("pods"), of("scheduling.k8s.io/v1beta1", "podgroups")),
	"pod-garbage-collector-controller":                               core("pods", "nodes"),
	"ttl-after-finished-controller":                                  batch("jobs"),
	"legacy-serviceaccount-token-cleaner-controller":                 core("serviceaccounts", "secrets", "pods", "configmaps"),
	"namespace-controller":                                           core("namespaces", "pods"),
	"garbage-collector-controller":                                   nil, // it follows what is served
}

// wants are the resources that a controller reads besides, where they are served.
var wants = map[string][]schema.GroupVersionResource{
	"resourceclaim-controller": of("scheduling.k8s.io/v1beta1", "podgroups"),
}

func of(gv string, resources ...string) []schema.GroupVersionResource {
	parsed, err := schema.ParseGroupVersion(gv)
	if err != nil {
		panic(err) // impossible: all of them are constants
	}
	var out []schema.GroupVersionResource
	for _, r := range resources {
		out = append(out, parsed.WithResource(r))
	}
	return out
}

func core(resources ...string) []schema.GroupVersionResource {
	return of(corev1.SchemeGroupVersion.String(), resources...)
}

func apps(resources ...string) []schema.GroupVersionResource {
	return of(appsv1.SchemeGroupVersion.String(), resources...)
}

func batch(resources ...string) []schema.GroupVersionResource {
	return of(batchv1.SchemeGroupVersion.String(), resources...)
}

func join(parts ...[]schema.GroupVersionResource) []schema.GroupVersionResource {
	return slices.Concat(parts...)
}

// missing returns the first resource that a controller needs and that is not served.
func (c *Config) missing(name string) (r schema.GroupVersionResource, lost bool) {
	for _, r := range needs[name] {
		if !c.serves(r) {
			return r, true
		}
	}
	return r, false
}

func (c *Config) lacks(r schema.GroupVersionResource) bool { return !c.serves(r) }

func (c *Config) serves(r schema.GroupVersionResource) bool { return c.Serves == nil || c.Serves(r) }

// again is after how long an API server that did not answer is asked again.
const again = time.Second

// Served asks an API server which resources it serves, until it answers or ctx ends. What it cannot tell, as of a
// group whose own server is down, counts as served.
func Served(ctx context.Context, d discovery.DiscoveryInterface) (func(schema.GroupVersionResource) bool, error) {
	for {
		_, lists, err := d.ServerGroupsAndResources()
		failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
		if err == nil || partly {
			return servedBy(lists, failed), nil
		}
		klog.FromContext(ctx).Info("Cannot ask the API server what it serves, trying again", "err", err)
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func servedBy(lists []*metav1.APIResourceList, failed map[schema.GroupVersion]error) func(schema.GroupVersionResource) bool {
	served := sets.New[schema.GroupVersionResource]()
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // not one that a controller needs
		}
		for _, r := range list.APIResources {
			served.Insert(gv.WithResource(r.Name))
		}
	}
	return func(r schema.GroupVersionResource) bool {
		_, unknown := failed[r.GroupVersion()]
		return unknown || served.Has(r)
	}
}
