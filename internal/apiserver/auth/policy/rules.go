// Package policy is the RBAC policy that a new cluster starts with: the roles and bindings that
// upstream's API server creates when it starts, with the same names and rules, so that
// documentation, charts and operators find what they expect.
package policy

import (
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

const (
	read      = "get list watch"
	write     = "create update patch delete deletecollection"
	readWrite = read + " " + write
	change    = read + " update patch"
)

// core stands for the API group without a name in the rules below.
const core = "core"

// rule builds a rule from three strings: verbs, groups, resources, each a list separated by spaces.
func rule(verbs, groups, resources string) rbacv1.PolicyRule {
	gs := strings.Fields(groups)
	for i := range gs {
		if gs[i] == core {
			gs[i] = ""
		}
	}
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), APIGroups: gs, Resources: strings.Fields(resources)}
}

// named limits a rule to objects with these names.
func named(r rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	r.ResourceNames = names
	return r
}

// urls returns a rule about paths that are not resources.
func urls(verbs string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), NonResourceURLs: paths}
}

// events returns a rule that lets a component report events.
func events() rbacv1.PolicyRule {
	return rule("create update patch", core+" events.k8s.io", "events")
}

func viewRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(read, core, "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps"),
		rule(read, core, "limitranges resourcequotas bindings pods/status resourcequotas/status namespaces/status replicationcontrollers/status pods/log"),
		rule(read, core, "namespaces"),
		rule(read, core+" events.k8s.io", "events"),
		rule(read, "discovery.k8s.io", "endpointslices"),
		rule(read, "apps", "controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale"),
		rule(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		rule(read, "batch", "jobs cronjobs cronjobs/status jobs/status"),
		rule(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		rule(read, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
		rule(read, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	}
}

func editRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(read, core, "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
		rule("impersonate", core, "serviceaccounts"),
		rule(write, core, "pods pods/attach pods/proxy pods/exec pods/portforward"),
		rule("create", core, "pods/eviction"),
		rule(write, core, "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy persistentvolumeclaims configmaps secrets"),
		rule("create", core, "serviceaccounts/token"),
		rule(write, core+" events.k8s.io", "events"),
		rule(write, "apps", "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback replicasets replicasets/scale"),
		rule(write, "autoscaling", "horizontalpodautoscalers"),
		rule(write, "batch", "jobs cronjobs"),
		rule(write, "policy", "poddisruptionbudgets"),
		rule(write, "networking.k8s.io", "networkpolicies ingresses"),
		rule(readWrite, "coordination.k8s.io", "leases"),
		rule(write, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
	}
}

// NodeRules returns what a node may do; the Node authorizer and the NodeRestriction admission
// plugin narrow it to the node's own objects.
func NodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
		rule(read, core, "services"),
		rule("create get list watch", core, "nodes"),
		rule("update patch", core, "nodes/status"),
		rule("update patch", core, "nodes"),
		events(),
		rule(read, core, "pods"),
		rule("create delete", core, "pods"),
		rule("update patch", core, "pods/status"),
		rule("create", core, "pods/eviction"),
		rule(read, core, "secrets configmaps"),
		rule("get", core, "persistentvolumeclaims persistentvolumes"),
		rule("get", core, "endpoints"),
		rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
		rule("get create update patch delete", "coordination.k8s.io", "leases"),
		rule("get", "storage.k8s.io", "volumeattachments"),
		rule("create", core, "serviceaccounts/token"),
		rule("get update patch", core, "persistentvolumeclaims/status"),
		rule(read, "storage.k8s.io", "csidrivers"),
		rule("get create update patch delete", "storage.k8s.io", "csinodes"),
		rule(read, "node.k8s.io", "runtimeclasses"),
		rule("get", "resource.k8s.io", "resourceclaims"),
		rule("deletecollection", "resource.k8s.io", "resourceslices"),
		rule("get", core, "serviceaccounts"),
		rule(read, "certificates.k8s.io", "clustertrustbundles"),
		rule("get list watch create", "certificates.k8s.io", "podcertificaterequests"),
	}
}

func schedulerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		events(),
		rule("create", "coordination.k8s.io", "leases"),
		named(rule("get update list watch", "coordination.k8s.io", "leases"), "kube-scheduler"),
		rule(readWrite, "coordination.k8s.io", "leasecandidates"),
		rule(read, core, "nodes"),
		rule("get list watch delete", core, "pods"),
		rule("create", core, "pods/binding bindings"),
		rule("patch update", core, "pods/status"),
		rule(read, core, "services replicationcontrollers"),
		rule(read, "apps", "replicasets"),
		rule(read, "apps", "statefulsets"),
		rule(read, "policy", "poddisruptionbudgets"),
		rule(read, core, "persistentvolumeclaims persistentvolumes"),
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		rule(read, "storage.k8s.io", "csinodes volumeattachments csidrivers csistoragecapacities"),
		rule(read, core, "namespaces"),
		rule(read, "resource.k8s.io", "deviceclasses resourceslices"),
		rule(change, "resource.k8s.io", "resourceclaims resourceclaims/status"),
		rule("create delete", "resource.k8s.io", "resourceclaims"),
		rule(read, "resource.k8s.io", "devicetaintrules"),
		rule("update patch", "resource.k8s.io", "resourceclaims/binding"),
		rule("update", core, "pods/finalizers"),
	}
}

func controllerManagerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		events(),
		rule("create", "coordination.k8s.io", "leases"),
		named(rule("get update", "coordination.k8s.io", "leases"), "kube-controller-manager"),
		rule("create", core, "secrets serviceaccounts"),
		rule("delete", core, "secrets"),
		rule("get", core, "namespaces secrets serviceaccounts configmaps"),
		rule("update", core, "secrets serviceaccounts"),
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		rule("list watch", "*", "*"),
		rule("create", core, "serviceaccounts/token"),
	}
}
