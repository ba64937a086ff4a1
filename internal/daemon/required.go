package daemon

import (
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/config"
)

// required are the resources that must not be switched off (--apiserver-arg runtime-config=…), because the scheduler,
// the kubelet and the network of this process would wait for them for ever, or fail. Controllers are not among
// those: one that cannot work does not run.
func required(proxy string) []apiserver.Required {
	var out []apiserver.Required
	add := func(by string, gv schema.GroupVersion, resources ...string) {
		for _, r := range resources {
			out = append(out, apiserver.Required{GroupVersionResource: gv.WithResource(r), By: by})
		}
	}
	add("the rights of this node's components", rbacv1.SchemeGroupVersion, "roles", "clusterroles", "rolebindings", "clusterrolebindings")
	add("the kubelet", corev1.SchemeGroupVersion, "pods", "nodes", "services", "secrets", "configmaps", "serviceaccounts")
	add("the events of the kubelet and the controllers", corev1.SchemeGroupVersion, "events")
	add("the scheduler's events", eventsv1.SchemeGroupVersion, "events")
	add("the kubelet", coordinationv1.SchemeGroupVersion, "leases")
	add("the kubelet's own server", authenticationv1.SchemeGroupVersion, "tokenreviews")
	add("the kubelet's own server", authorizationv1.SchemeGroupVersion, "subjectaccessreviews")
	add("the scheduler", corev1.SchemeGroupVersion, "namespaces", "replicationcontrollers", "persistentvolumes", "persistentvolumeclaims")
	add("the scheduler", appsv1.SchemeGroupVersion, "replicasets", "statefulsets")
	add("the scheduler", policyv1.SchemeGroupVersion, "poddisruptionbudgets")
	add("the scheduler", resourcev1.SchemeGroupVersion, "deviceclasses", "resourceclaims", "resourceslices")
	add("the scheduler", storagev1.SchemeGroupVersion, "csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments")
	add("the names and addresses of services", discoveryv1.SchemeGroupVersion, "endpointslices")
	if proxy != config.NoProxy {
		add("the service proxy", networkingv1.SchemeGroupVersion, "servicecidrs")
		add("network policies", networkingv1.SchemeGroupVersion, "networkpolicies")
	}
	return out
}
