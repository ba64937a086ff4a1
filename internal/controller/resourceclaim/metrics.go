package resourceclaim

import (
	"strconv"
	"sync/atomic"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	resourceclaimmetrics "k8s.io/dynamic-resource-allocation/resourceclaim/metrics"
	"k8s.io/utils/ptr"
)

// Metrics under upstream's names.
var claimsDesc = metrics.NewDesc("dynamic_resource_allocation_resource_claims",
	"Number of ResourceClaims, by whether they are allocated, whether they ask for administrative access, and where "+
		"they come from: resource_claim_template, extended_resource, or empty for one that a user made.",
	[]string{"allocated", "admin_access", "source"}, nil, metrics.ALPHA, "")

// counted is the lister of the controller that was built last: there is one in a process, but for tests.
var counted atomic.Pointer[resourcelisters.ResourceClaimLister]

func init() { legacyregistry.CustomMustRegister(&census{}) }

func register(claims resourcelisters.ResourceClaimLister) {
	resourceclaimmetrics.RegisterMetrics()
	counted.Store(&claims)
}

// countCreation counts a claim that was made, or was not.
func countCreation(its *resourcev1.ResourceClaim, o owner, err error) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	admin := strconv.FormatBool(asksForAdmin(its))
	resourceclaimmetrics.ResourceClaimCreate.WithLabelValues(status, admin, o.group, o.kind).Inc()
}

// asksForAdmin reports whether a claim asks for administrative access. Alternatives cannot.
func asksForAdmin(its *resourcev1.ResourceClaim) bool {
	for i := range its.Spec.Devices.Requests {
		if e := its.Spec.Devices.Requests[i].Exactly; e != nil && ptr.Deref(e.AdminAccess, false) {
			return true
		}
	}
	return false
}

// census counts claims when somebody asks.
type census struct{ metrics.BaseStableCollector }

// DescribeWithStability implements metrics.StableCollector.
func (*census) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- claimsDesc }

// CollectWithStability implements metrics.StableCollector.
func (*census) CollectWithStability(ch chan<- metrics.Metric) {
	lister := counted.Load()
	if lister == nil {
		return
	}
	all, err := (*lister).List(labels.Everything())
	if err != nil {
		return // a lister has no errors
	}
	type kind struct {
		allocated, admin bool
		source           string
	}
	count := map[kind]int{}
	for _, its := range all {
		count[kind{its.Status.Allocation != nil, asksForAdmin(its), sourceOf(its)}]++
	}
	for k, n := range count {
		ch <- metrics.NewLazyConstMetric(claimsDesc, metrics.GaugeValue, float64(n),
			strconv.FormatBool(k.allocated), strconv.FormatBool(k.admin), k.source)
	}
}

func sourceOf(its *resourcev1.ResourceClaim) string {
	switch {
	case its.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true":
		return "extended_resource"
	case its.Annotations[resourcev1.PodResourceClaimAnnotation] != "":
		return "resource_claim_template"
	}
	return ""
}
