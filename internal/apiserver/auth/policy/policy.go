package policy

import (
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"wherry.dev/internal/api/cluster"
)

const (
	// AutoUpdate is the annotation with which an administrator keeps a bootstrap object unchanged,
	// by setting it to "false".
	AutoUpdate    = rbacv1.AutoUpdateAnnotationKey
	bootstrapping = "kubernetes.io/bootstrapping"
	aggregateTo   = "rbac.authorization.k8s.io/aggregate-to-"
	controller    = "system:controller:"
	metricsReader = "system:aggregated-metrics-reader" // metrics-server brings one of this name

	requestRoles        = "system:certificates.k8s.io:certificatesigningrequests:"
	bootstrappers       = "system:bootstrappers"
	clientKubeletSigner = "kubernetes.io/kube-apiserver-client-kubelet"
)

// controllers holds the rules of the controllers' roles, by the name of their service account in
// kube-system.
var controllers = map[string][]rbacv1.PolicyRule{
	"namespace-controller": {
		rule("get list watch delete", core, "namespaces"),
		rule("update", core, "namespaces/finalize namespaces/status"),
		rule("get list watch delete deletecollection", "*", "*"),
	},
	"node-controller": {
		rule("get list watch update delete patch", core, "nodes"),
		rule("patch update", core, "nodes/status"),
		rule("patch update", core, "pods/status"),
		rule("list watch get delete", core, "pods"),
		rule(read, "coordination.k8s.io", "leases"),
		events(),
	},
	"pod-garbage-collector": {
		rule("list watch delete", core, "pods"),
		rule(read, core, "nodes"),
		rule("patch", core, "pods/status"),
	},
	"service-account-controller": {
		rule("create", core, "serviceaccounts"),
		events(),
	},
	"replicaset-controller": {
		rule("get list watch update", "apps extensions", "replicasets"),
		rule("update", "apps extensions", "replicasets/status replicasets/finalizers"),
		rule("list watch patch create delete", core, "pods"),
		events(),
	},
	"replication-controller": {
		rule("get list watch update", core, "replicationcontrollers"),
		rule("update", core, "replicationcontrollers/status replicationcontrollers/finalizers"),
		rule("list watch patch create delete", core, "pods"),
		events(),
	},
	"deployment-controller": {
		rule("get list watch update", "apps extensions", "deployments"),
		rule("update", "apps extensions", "deployments/status deployments/finalizers"),
		rule("get list watch create update patch delete", "apps extensions", "replicasets"),
		rule("get list watch update", core, "pods"),
		events(),
	},
	"job-controller": {
		rule("get list watch update patch", "batch", "jobs"),
		rule("update", "batch", "jobs/status jobs/finalizers"),
		rule("list watch create delete patch", core, "pods"),
		events(),
	},
	"cronjob-controller": {
		rule("get list watch update", "batch", "cronjobs"),
		rule("get list watch create update delete patch", "batch", "jobs"),
		rule("update", "batch", "cronjobs/status cronjobs/finalizers"),
		rule("list watch delete", core, "pods"),
		events(),
	},
	"ttl-after-finished-controller": {
		rule("get list watch delete", "batch", "jobs"),
		events(),
	},
	"daemon-set-controller": {
		rule("get list watch", "apps extensions", "daemonsets"),
		rule("update", "apps extensions", "daemonsets/status daemonsets/finalizers"),
		rule("list watch", core, "nodes"),
		rule("list watch create delete patch", core, "pods"),
		rule("create", core, "pods/binding"),
		rule("get list watch create delete update patch", "apps", "controllerrevisions"),
		events(),
	},
	"statefulset-controller": {
		rule("list watch get create delete update patch", core, "pods"),
		rule("get list watch", "apps", "statefulsets"),
		rule("update", "apps", "statefulsets/status statefulsets/finalizers"),
		rule("get create delete update patch list watch", "apps", "controllerrevisions"),
		rule("get create list watch update delete", core, "persistentvolumeclaims"),
		rule("update", core, "pods/finalizers"),
		events(),
	},
	"disruption-controller": {
		rule("get list watch", "apps extensions", "deployments replicasets"),
		rule("get list watch", core, "replicationcontrollers"),
		rule("get list watch", "policy", "poddisruptionbudgets"),
		rule("get list watch", "apps", "statefulsets"),
		rule("update", "policy", "poddisruptionbudgets/status"),
		rule("patch update", core, "pods/status"),
		rule("get", "*", "*/scale"),
		events(),
	},
	"root-ca-cert-publisher": {
		rule("create update", core, "configmaps"),
		events(),
	},
	"kube-apiserver-serving-clustertrustbundle-publisher": {
		named(rule("attest", "certificates.k8s.io", "signers"), "kubernetes.io/kube-apiserver-serving"),
		rule("create update delete list watch", "certificates.k8s.io", "clustertrustbundles"),
		events(),
	},
	"endpoint-controller": {
		rule(read, core, "services pods"),
		rule("get list watch create update delete", core, "endpoints"),
		rule("create", core, "endpoints/restricted"),
		events(),
	},
	"cluster-dns-controller": { // ours alone: it publishes the built-in DNS
		rule("get create delete", core, "services"),
		rule("get create update delete", "discovery.k8s.io", "endpointslices"),
		rule("create", "discovery.k8s.io", "endpointslices/restricted"),
	},
	"endpointslice-controller": {
		rule(read, core, "services pods nodes"),
		rule("update", core, "services/finalizers"),
		rule("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
		rule("create", "discovery.k8s.io", "endpointslices/restricted"),
		events(),
	},
	"endpointslicemirroring-controller": {
		rule(read, core, "services endpoints"),
		rule("update", core, "services/finalizers endpoints/finalizers"),
		rule("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
		rule("create", "discovery.k8s.io", "endpointslices/restricted"),
		events(),
	},
	"service-controller": {
		rule(read, core, "services"),
		rule("patch update", core, "services/status"),
		rule("list watch", core, "nodes"),
		events(),
	},
	"certificate-controller": {
		rule("get list watch delete", "certificates.k8s.io", "certificatesigningrequests"),
		rule("update", "certificates.k8s.io", "certificatesigningrequests/status certificatesigningrequests/approval"),
		named(rule("approve", "certificates.k8s.io", "signers"), clientKubeletSigner),
		named(rule("sign", "certificates.k8s.io", "signers"),
			clientKubeletSigner, "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client", "kubernetes.io/legacy-unknown"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		events(),
	},
	"podcertificaterequestcleaner": {
		rule("get list watch delete", "certificates.k8s.io", "podcertificaterequests"),
	},
	"resourcequota-controller": {
		rule("list watch", "*", "*"),
		rule("update", core, "resourcequotas/status"),
		events(),
	},
	"horizontal-pod-autoscaler": {
		rule(read, "autoscaling", "horizontalpodautoscalers"),
		rule("update", "autoscaling", "horizontalpodautoscalers/status"),
		rule("get update", "*", "*/scale"),
		rule("list watch", core, "pods"),
		rule("list watch", "metrics.k8s.io", "pods"),
		rule(read, "custom.metrics.k8s.io", "*"),
		rule(read, "external.metrics.k8s.io", "*"),
		events(),
	},
	"resource-claim-controller": {
		rule(read, core, "pods"),
		rule("update", core, "pods/finalizers"),
		rule("get list watch create delete", "resource.k8s.io", "resourceclaims"),
		rule("update patch", "resource.k8s.io", "resourceclaims resourceclaims/status"),
		rule("update patch", core, "pods/status"),
		events(),
		rule("update patch", "resource.k8s.io", "resourceclaims/binding"),
	},
	"device-taint-eviction-controller": {
		rule("get list watch delete", core, "pods"),
		rule("update patch", core, "pods/status"),
		rule(read, "resource.k8s.io", "resourceclaims"),
		rule(read, "resource.k8s.io", "resourceslices"),
		rule(read, "resource.k8s.io", "deviceclasses"),
		events(),
		rule("update patch", "resource.k8s.io", "devicetaintrules/status"),
		rule(read, "resource.k8s.io", "devicetaintrules"),
	},
	"clusterrole-aggregation-controller": {
		rule("escalate get list watch update patch", rbacv1.GroupName, "clusterroles"),
	},
	"legacy-service-account-token-cleaner": {
		named(rule("get", core, "configmaps"), "kube-apiserver-legacy-service-account-token-tracking"),
		rule("patch delete", core, "secrets"),
	},
	"service-cidrs-controller": {
		rule("get list watch patch update", "networking.k8s.io", "servicecidrs"),
		rule("patch update", "networking.k8s.io", "servicecidrs/finalizers"),
		rule("patch update", "networking.k8s.io", "servicecidrs/status"),
		rule(read, "networking.k8s.io", "ipaddresses"),
		events(),
	},
	"storage-version-migrator-controller": {
		// To apply to an object that is gone is to create it; the UID in it makes that a conflict.
		rule("list create patch", "*", "*"),
		rule("update", "storagemigration.k8s.io", "storageversionmigrations/status"),
		rule("get", "apiextensions.k8s.io", "customresourcedefinitions"),
	},
	"generic-garbage-collector": {
		rule("get list watch patch update delete", "*", "*"),
		events(),
	},

	// Upstream's controller manager has these besides.
	"attachdetach-controller": {
		rule("list watch", core, "persistentvolumes persistentvolumeclaims pods"),
		rule(read, core, "nodes"),
		rule("patch update", core, "nodes/status"),
		rule("get list watch create delete", "storage.k8s.io", "volumeattachments"),
		rule(read, "storage.k8s.io", "csidrivers csinodes"),
		events(),
	},
	"ephemeral-volume-controller": {
		rule(read, core, "pods"),
		rule("update", core, "pods/finalizers"),
		rule("get list watch create", core, "persistentvolumeclaims"),
		events(),
	},
	"expand-controller": {
		rule(change, core, "persistentvolumes"),
		rule("patch update", core, "persistentvolumeclaims/status"),
		rule(read, core, "persistentvolumeclaims"),
		events(),
	},
	// Which nodes' room it tells, Roles has.
	"local-volume-provisioner": {
		rule("get create update delete", core, "persistentvolumes"),
		rule("get update", core, "persistentvolumeclaims"),
		rule("update", core, "persistentvolumeclaims/status"),
		events(),
	},
	"persistent-volume-binder": {
		rule("get list watch create update delete", core, "persistentvolumes"),
		rule("get list watch update", core, "persistentvolumeclaims"),
		rule("update", core, "persistentvolumes/status persistentvolumeclaims/status"),
		rule("get list watch create delete", core, "pods"),
		rule("list watch", core, "nodes"),
		rule(read, "storage.k8s.io", "storageclasses"),
		rule("watch", core, "events"),
		events(),
	},
	"pv-protection-controller": {
		rule("get list watch update", core, "persistentvolumes"),
		events(),
	},
	"pvc-protection-controller": {
		rule("get list watch update", core, "persistentvolumeclaims"),
		rule("update", core, "persistentvolumeclaims/status"),
		rule(read, core, "pods"),
		events(),
	},
	"route-controller": {
		rule("list watch", core, "nodes"),
		rule("patch", core, "nodes/status"),
		events(),
	},
	"selinux-warning-controller": {
		rule(read, core, "persistentvolumes persistentvolumeclaims pods"),
		rule(read, "storage.k8s.io", "csidrivers"),
		events(),
	},
	"ttl-controller": {
		rule("list watch patch update", core, "nodes"),
		events(),
	},
	"validatingadmissionpolicy-status-controller": {
		rule(read, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
		rule("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
		events(),
	},
	"volumeattributesclass-protection-controller": {
		rule(read, core, "persistentvolumeclaims persistentvolumes"),
		rule("get list watch update", "storage.k8s.io", "volumeattributesclasses"),
		events(),
	},
}

// ClusterRoles returns the cluster roles that a cluster starts with. A controller fills admin, edit and
// view, which aggregate others.
func ClusterRoles() []rbacv1.ClusterRole {
	roles := []rbacv1.ClusterRole{
		role("cluster-admin", rule("*", "*", "*"), urls("*", "*")),
		role("system:discovery", urls("get",
			"/livez", "/readyz", "/healthz", "/version", "/version/", "/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")),
		role("system:monitoring", urls("get",
			"/metrics", "/metrics/slis", "/statusz", "/flagz", "/livez", "/readyz", "/healthz", "/livez/*", "/readyz/*", "/healthz/*"),
			rule("get", core, "nodes/metrics")),
		role("system:basic-user",
			rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
			rule("create", "authentication.k8s.io", "selfsubjectreviews")),
		role("system:public-info-viewer", urls("get", "/livez", "/readyz", "/healthz", "/version", "/version/")),
		aggregate("admin", ""), aggregate("edit", "admin"), aggregate("view", "edit"),
		label(role("system:aggregate-to-admin",
			rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
			rule(readWrite, rbacv1.GroupName, "roles rolebindings")), aggregateTo+"admin"),
		label(role("system:aggregate-to-edit", editRules()...), aggregateTo+"edit"),
		label(role("system:aggregate-to-view", viewRules()...), aggregateTo+"view"),
		label(label(label(role(metricsReader, rule("get list watch", "metrics.k8s.io", "pods nodes")),
			aggregateTo+"view"), aggregateTo+"edit"), aggregateTo+"admin"),
		role("system:node", NodeRules()...),
		role("system:node-problem-detector", rule("get", core, "nodes"), rule("patch", core, "nodes/status"), events()),
		role("system:node-bootstrapper", rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests")),
		role(requestRoles+"nodeclient", rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")),
		role(requestRoles+"selfnodeclient", rule("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")),
		approver("kubelet-serving"), approver("kube-apiserver-client"), approver("kube-apiserver-client-kubelet"),
		approver("legacy-unknown"),
		role("system:auth-delegator",
			rule("create", "authentication.k8s.io", "tokenreviews"),
			rule("create", "authorization.k8s.io", "subjectaccessreviews")),
		role("system:kube-controller-manager", controllerManagerRules()...),
		role("system:kube-aggregator", rule(read, core, "services endpoints")),
		role("system:kube-dns", rule("list watch", core, "endpoints services")),
		role("system:kube-scheduler", schedulerRules()...),
		role("system:volume-scheduler",
			rule(change, core, "persistentvolumes"),
			rule(read, "storage.k8s.io", "storageclasses"),
			rule(change, core, "persistentvolumeclaims")),
		role("system:node-proxier",
			rule("list watch", core, "services endpoints"),
			rule(read, core, "nodes"), events(),
			rule("list watch", "networking.k8s.io", "servicecidrs"),
			rule("list watch", "discovery.k8s.io", "endpointslices")),
		role("system:persistent-volume-provisioner",
			rule("get list watch create delete", core, "persistentvolumes"),
			rule("get list watch update", core, "persistentvolumeclaims"),
			rule(read, "storage.k8s.io", "storageclasses"),
			rule("watch", core, "events"), events()),
		role("system:service-account-issuer-discovery", urls("get",
			"/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/")),
		role("system:cluster-trust-bundle-discovery", rule(read, "certificates.k8s.io", "clustertrustbundles")),
		role("system:kubelet-api-admin",
			rule(read, core, "nodes"), rule("proxy", core, "nodes"),
			rule("*", core, "nodes/proxy nodes/metrics nodes/stats nodes/log"),
			rule("*", core, "nodes/pods nodes/healthz nodes/configz")),
	}
	for _, name := range slices.Sorted(maps.Keys(controllers)) {
		roles = append(roles, role(controller+name, controllers[name]...))
	}
	return roles
}

// ClusterRoleBindings returns the cluster role bindings that a cluster starts with.
func ClusterRoleBindings() []rbacv1.ClusterRoleBinding {
	bindings := []rbacv1.ClusterRoleBinding{
		bind("cluster-admin", group(user.SystemPrivilegedGroup)),
		bind("system:monitoring", group(user.MonitoringGroup)),
		bind("system:discovery", group(user.AllAuthenticated)),
		bind("system:basic-user", group(user.AllAuthenticated)),
		bind("system:public-info-viewer", group(user.AllAuthenticated), group(user.AllUnauthenticated)),
		bind("system:node-proxier", person(user.KubeProxy)),
		bind("system:kube-controller-manager", person(user.KubeControllerManager)),
		bind("system:kube-dns", account("kube-dns")),
		bind("system:kube-scheduler", person(user.KubeScheduler)),
		bind("system:volume-scheduler", person(user.KubeScheduler)),
		bind("system:node"), // nodes are authorized by the Node authorizer
		// As kubeadm does: kubelets may request their client certificate, and renew it.
		bind("system:node-bootstrapper", group(bootstrappers)),
		bind(requestRoles+"nodeclient", group(bootstrappers)),
		bind(requestRoles+"selfnodeclient", group(user.NodesGroup)),
		bind("system:service-account-issuer-discovery", group(serviceaccount.AllServiceAccountsGroup)),
		bind("system:cluster-trust-bundle-discovery", group(serviceaccount.AllServiceAccountsGroup)),
	}
	for _, name := range slices.Sorted(maps.Keys(controllers)) {
		bindings = append(bindings, bind(controller+name, account(name)))
	}
	return bindings
}

// Roles returns the namespaced roles that a cluster starts with.
func Roles() []rbacv1.Role {
	leader := rule("get watch list create update", "coordination.k8s.io", "leases leasecandidates")
	return []rbacv1.Role{
		namespaced("extension-apiserver-authentication-reader", named(rule(read, core, "configmaps"), "extension-apiserver-authentication")),
		namespaced("system::leader-locking-kube-controller-manager", leader),
		namespaced("system::leader-locking-kube-scheduler", leader),
		namespaced(controller+"token-cleaner", rule("get list watch delete", core, "secrets"), events()),
		namespaced(controller+"cloud-provider", rule("create get list watch", core, "configmaps")),
		namespaced(controller+"bootstrap-signer", rule("get list watch", core, "secrets")),
		in(metav1.NamespacePublic, namespaced(controller+"bootstrap-signer", rule(read, core, "configmaps"),
			named(rule("update", core, "configmaps"), cluster.InfoName), events())),
		namespaced(localRoom, rule("create update delete", "storage.k8s.io", "csistoragecapacities")),
	}
}

// RoleBindings returns the namespaced role bindings that a cluster starts with.
func RoleBindings() []rbacv1.RoleBinding {
	return []rbacv1.RoleBinding{
		bindIn("system::extension-apiserver-authentication-reader", "extension-apiserver-authentication-reader",
			person(user.KubeControllerManager), person(user.KubeScheduler)),
		bindIn("system::leader-locking-kube-controller-manager", "system::leader-locking-kube-controller-manager",
			person(user.KubeControllerManager), account("kube-controller-manager"), account("leader-election-controller")),
		bindIn("system::leader-locking-kube-scheduler", "system::leader-locking-kube-scheduler",
			person(user.KubeScheduler), account("kube-scheduler")),
		bindIn(controller+"token-cleaner", controller+"token-cleaner", account("token-cleaner")),
		bindIn(controller+"cloud-provider", controller+"cloud-provider", account("cloud-provider")),
		bindIn(controller+"bootstrap-signer", controller+"bootstrap-signer", account("bootstrap-signer")),
		bindingIn(metav1.NamespacePublic, bindIn(controller+"bootstrap-signer", controller+"bootstrap-signer", account("bootstrap-signer"))),
		bindIn(localRoom, localRoom, account("local-volume-provisioner")),
	}
}

// Policy is a set of RBAC objects.
type Policy struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Default returns what every cluster starts with: upstream's, and what our own controllers need.
func Default() Policy {
	return Policy{ClusterRoles(), ClusterRoleBindings(), Roles(), RoleBindings()}
}

// PodGroups returns what is added where pod groups are served: rights of users, of the scheduler, and of the controllers
// that protect groups and make their claims.
func PodGroups() Policy {
	const scheduling, protector = "scheduling.k8s.io", controller + "podgroup-protection-controller"
	return Policy{
		ClusterRoles: []rbacv1.ClusterRole{
			label(role("system:aggregate-to-edit", rule(write, scheduling, "workloads podgroups")), aggregateTo+"edit"),
			label(role("system:aggregate-to-view", rule(read, scheduling, "workloads podgroups podgroups/status")), aggregateTo+"view"),
			role("system:kube-scheduler", rule(read, scheduling, "podgroups"), rule("patch update", scheduling, "podgroups/status")),
			role(controller+"resource-claim-controller", rule(read, scheduling, "podgroups"), rule("update patch", scheduling, "podgroups/status")),
			role(protector, rule("get list watch update", scheduling, "podgroups"), rule(read, core, "pods")),
		},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{bind(protector, account("podgroup-protection-controller"))},
	}
}

// Joining returns what a cluster has besides whose nodes join servers of Wherry.
func Joining() Policy {
	publisher := "wherry:cluster-info-publisher"
	return Policy{
		ClusterRoles: []rbacv1.ClusterRole{
			// Those who join look whether their name is taken.
			role("kubeadm:get-nodes", rule("get", core, "nodes")),
			// Servers that join ask for the cluster's keys; their token proves that they may have them.
			role(serverJoin, rbacv1.PolicyRule{Verbs: []string{"post"}, NonResourceURLs: []string{cluster.ServersPath}}),
			// What a node needs besides its pods: services and their names, the ways to other nodes, network policies.
			role(nodeNetwork,
				rule(read, core, "nodes services namespaces pods"), rule(read, "discovery.k8s.io", "endpointslices"),
				rule(read, "networking.k8s.io", "servicecidrs networkpolicies")),
			role(nodeDisks, rule("get create update delete", core, "nodes/proxy")),
		},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{
			bind("kubeadm:get-nodes", group(bootstrappers)),
			bind(serverJoin, group(cluster.ServersGroup)),
			bind(nodeNetwork, group(user.NodesGroup)),
			bind(nodeDisks, person(DisksUser)),
			bind("system:certificates.k8s.io:kubelet-serving-approver", account("certificate-controller")),
		},
		Roles: []rbacv1.Role{
			namespaced(clusterFacts, named(rule("get", core, "configmaps"), cluster.FactsName)),
			namespaced(publisher, rule("create", core, "configmaps"), named(rule("get update", core, "configmaps"), cluster.FactsName)),
			in(metav1.NamespacePublic, namespaced(publisher, rule("create", core, "configmaps"))),
			in(metav1.NamespacePublic, namespaced(clusterInfo, named(rule("get", core, "configmaps"), cluster.InfoName))),
		},
		RoleBindings: []rbacv1.RoleBinding{
			bindIn(clusterFacts, clusterFacts, group(user.NodesGroup)),
			bindIn(publisher, publisher, account("bootstrap-signer")),
			bindingIn(metav1.NamespacePublic, bindIn(publisher, publisher, account("bootstrap-signer"))),
			bindingIn(metav1.NamespacePublic, bindIn(clusterInfo, clusterInfo, person(user.Anonymous))),
		},
	}
}

// DisksUser is who asks nodes for directories on their disks. It is a user inside the process of a server only.
const DisksUser = nodeDisks

const (
	// nodeNetwork is for nodes that have network and services of ours.
	nodeNetwork = "wherry:node-network"
	// nodeDisks is for the provisioner of local volumes, which has kubelets make and remove their directories.
	nodeDisks = "wherry:node-disks"
	// serverJoin is for servers that join others.
	serverJoin = "wherry:server-join"
	// clusterFacts is for what nodes have to agree on.
	clusterFacts = "wherry:cluster-facts"
	// clusterInfo is for what everybody may know of the cluster; kubeadm's name.
	clusterInfo = "kubeadm:bootstrap-signer-clusterinfo"
)

// localRoom is for what says how much room nodes have for local volumes.
const localRoom = controller + "local-volume-provisioner"

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{bootstrapping: "rbac-defaults"},
		Annotations: map[string]string{AutoUpdate: "true"},
	}
}

func role(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: meta(name), Rules: rules}
}

// approver returns a role that may approve requests for one of Kubernetes' own signers.
func approver(signer string) rbacv1.ClusterRole {
	return role("system:certificates.k8s.io:"+signer+"-approver", named(rule("approve", "certificates.k8s.io", "signers"), "kubernetes.io/"+signer))
}

func label(r rbacv1.ClusterRole, key string) rbacv1.ClusterRole {
	r.Labels[key] = "true"
	return r
}

// aggregate returns a role made of all roles labelled for it. If into is set, its own label makes
// it part of that role in turn.
func aggregate(name, into string) rbacv1.ClusterRole {
	r := role(name)
	if into != "" {
		r = label(r, aggregateTo+into)
	}
	r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: map[string]string{aggregateTo + name: "true"}},
	}}
	return r
}

func namespaced(name string, rules ...rbacv1.PolicyRule) rbacv1.Role {
	r := rbacv1.Role{ObjectMeta: meta(name), Rules: rules}
	r.Namespace = metav1.NamespaceSystem
	return r
}

// in puts a role into another namespace than kube-system.
func in(namespace string, r rbacv1.Role) rbacv1.Role {
	r.Namespace = namespace
	return r
}

// bindingIn puts a binding into another namespace than kube-system.
func bindingIn(namespace string, b rbacv1.RoleBinding) rbacv1.RoleBinding {
	b.Namespace = namespace
	return b
}

func bind(name string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   subjects,
	}
}

func bindIn(name, roleName string, subjects ...rbacv1.Subject) rbacv1.RoleBinding {
	b := rbacv1.RoleBinding{
		ObjectMeta: meta(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName},
		Subjects:   subjects,
	}
	b.Namespace = metav1.NamespaceSystem
	return b
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

func person(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: strings.TrimPrefix(name, controller)}
}
