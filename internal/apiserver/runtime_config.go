package apiserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/apiserver/scheme"
	"wherry.dev/internal/component"
)

// Required is a resource that must not be switched off (--runtime-config).
type Required struct {
	schema.GroupVersionResource
	By string // what cannot do without it
}

// requiredHere are the resources through which the server keeps its own objects, and finds its way.
func requiredHere() []Required {
	var out []Required
	add := func(by string, gv schema.GroupVersion, resources ...string) {
		for _, r := range resources {
			out = append(out, Required{gv.WithResource(r), by})
		}
	}
	add("what every cluster starts with", corev1.SchemeGroupVersion, "namespaces", "configmaps")
	add("the service kubernetes, and whoever calls a service from here", corev1.SchemeGroupVersion, "services", "endpoints")
	add("the service kubernetes, and whoever calls a service from here", discoveryv1.SchemeGroupVersion, "endpointslices")
	add("the addresses of services", networkingv1.SchemeGroupVersion, "servicecidrs", "ipaddresses")
	add("kinds of users", apiextensionsv1.SchemeGroupVersion, "customresourcedefinitions")
	add("discovery", apiregistrationv1.SchemeGroupVersion, "apiservices")
	return out
}

// apis returns which APIs are served. All that there are, unless --runtime-config says otherwise. It may switch off
// whatever Kubernetes has, as flags made for kube-apiserver do, and switch on what is served here.
func (c *Config) apis() (*serverstorage.ResourceConfig, error) {
	known, have := runtime.NewScheme(), serverstorage.NewResourceConfig()
	groups := append([]schema.GroupVersion{apiextensionsv1.SchemeGroupVersion, apiregistrationv1.SchemeGroupVersion}, scheme.Groups...)
	for _, gv := range groups {
		metav1.AddToGroupVersion(known, gv)
		if gv != metricsv1beta1.SchemeGroupVersion {
			have.EnableVersions(gv)
		}
	}
	// It is not one of Kubernetes' own, but stands in for another server: api/all and api/beta do not mean it.
	have.EnableResources(metricsv1beta1.SchemeGroupVersion.WithResource("nodes"), metricsv1beta1.SchemeGroupVersion.WithResource("pods"))
	for _, gv := range clientscheme.Scheme.PrioritizedVersionsAllGroups() {
		metav1.AddToGroupVersion(known, gv)
	}
	for _, err := range c.APIs.Validate(known) {
		return nil, fmt.Errorf("--runtime-config: %w", err)
	}
	have, err := resourceconfig.MergeAPIResourceConfigs(have, c.APIs.RuntimeConfig, known)
	if err != nil {
		return nil, fmt.Errorf("--runtime-config: %w", err)
	}
	missing := sets.New[string]()
	want := func(gv schema.GroupVersion, enabled bool) {
		if enabled && !slices.Contains(groups, gv) {
			missing.Insert(gv.String())
		}
	}
	for gv, enabled := range have.GroupVersionConfigs {
		want(gv, enabled)
	}
	for r, enabled := range have.ResourceConfigs {
		want(r.GroupVersion(), enabled)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("--runtime-config: this server does not have %s, and cannot switch it on; leave it out", strings.Join(sets.List(missing), ", "))
	}
	if !c.PodGroups() {
		have.DisableVersions(schedulingv1beta1.SchemeGroupVersion)
	}
	return have, nil
}

// PodGroups reports whether workloads and pod groups are served, unless --runtime-config says otherwise, and pods may
// belong to groups (the gate GenericWorkload). Upstream wants --runtime-config=scheduling.k8s.io/v1beta1=true besides.
func (c *Config) PodGroups() bool { return c.gate(gated.GenericWorkload) }

// gate reports whether a gate is on that is off by default.
func (c *Config) gate(gate string) bool {
	for name, on := range c.FeatureGates {
		if component.Gate(name) == gate {
			return on
		}
	}
	return false
}

// Features returns those that are on though they are off by default.
func (s *Server) Features() gated.Features { return s.cfg.features() }

// features are those that are on though they are off by default.
func (c *Config) features() gated.Features {
	return gated.Features{
		PodGroups: c.PodGroups(), Topology: c.gate(gated.TopologyAwareWorkloadScheduling),
		GroupClaims: c.gate(gated.DRAWorkloadResourceClaims), GroupPreemption: c.gate(gated.PodGroupPreemptionPolicy),
		VolumeHealth: c.gate(gated.CSIVolumeHealth),
	}
}

// missingAPIs returns an error for each resource that is required and switched off, or the one error
// in the flag.
func (c *Config) missingAPIs() []error {
	served, err := c.apis()
	if err != nil {
		return []error{err}
	}
	var errs []error
	told := map[schema.GroupVersionResource]bool{}
	for _, r := range append(requiredHere(), c.Required...) {
		if served.ResourceEnabled(r.GroupVersionResource) || told[r.GroupVersionResource] {
			continue
		}
		told[r.GroupVersionResource] = true
		gv := r.Group + "/" + r.Version
		errs = append(errs, fmt.Errorf("--runtime-config switches off %s/%s, which is needed for %s; add %[1]s=true, and leave out %[1]s/%[2]s=false",
			gv, r.Resource, r.By))
	}
	return errs
}

// serves reports whether all resources of a version are served.
func (s *Server) serves(gv schema.GroupVersion, resources ...string) bool {
	for _, r := range resources {
		if !s.Serves(gv.WithResource(r)) {
			return false
		}
	}
	return true
}

// Serves reports whether a resource of Kubernetes' own is served here, or was switched off.
func (s *Server) Serves(r schema.GroupVersionResource) bool { return s.apis.ResourceEnabled(r) }

// servesRBAC reports whether the objects of RBAC can be kept up to date. Those that are stored hold in any case.
func (s *Server) servesRBAC() bool {
	return s.serves(rbacv1.SchemeGroupVersion, "roles", "clusterroles", "rolebindings", "clusterrolebindings")
}

// leaveOut switches off what cannot work without APIs that were switched off, and says so.
func (s *Server) leaveOut(log klog.Logger) {
	lost := func(what string) { log.Info("An API is switched off (--runtime-config)", "consequence", what) }
	if s.cfg.PriorityAndFairness && !s.serves(flowcontrolv1.SchemeGroupVersion, "flowschemas", "prioritylevelconfigurations") {
		lost("without flowcontrol.apiserver.k8s.io/v1 there is no priority and fairness: --max-requests-inflight and --max-mutating-requests-inflight each limit requests")
		s.cfg.PriorityAndFairness = false
	}
	if !s.servesRBAC() {
		lost("without rbac.authorization.k8s.io/v1 the default roles and bindings are neither made nor kept up to date; those that are stored still hold")
	}
	if on, err := strconv.ParseBool(s.cfg.APIs.RuntimeConfig[schedulingv1beta1.SchemeGroupVersion.String()]); err == nil && on && !s.cfg.PodGroups() {
		lost("without --feature-gates=GenericWorkload=true, --runtime-config does not switch scheduling.k8s.io/v1beta1 on")
	}
	if !s.serves(schedulingv1.SchemeGroupVersion, "priorityclasses") {
		lost("without scheduling.k8s.io/v1 the system's priority classes are not made")
	}
}
