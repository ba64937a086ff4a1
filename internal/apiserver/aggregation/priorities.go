package aggregation

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// priority is the place of a group among the groups, and of a version in its group: larger numbers
// come first in discovery. Clients take the first group that knows the name of a resource.
type priority struct{ group, version int32 }

// priorities are upstream's. A version that is missing gets no APIService, and is reached all the
// same.
var priorities = map[schema.GroupVersion]priority{
	{Group: "", Version: "v1"}:                             {18000, 1},
	{Group: "apps", Version: "v1"}:                         {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:                {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:        {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:         {17600, 15},
	{Group: "autoscaling", Version: "v1"}:                  {17500, 15},
	{Group: "autoscaling", Version: "v2"}:                  {17500, 30},
	{Group: "batch", Version: "v1"}:                        {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:          {17300, 15},
	{Group: "certificates.k8s.io", Version: "v1beta1"}:     {17300, 9},
	{Group: "networking.k8s.io", Version: "v1"}:            {17200, 15},
	{Group: "policy", Version: "v1"}:                       {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:    {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:               {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}:         {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}: {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}:            {16600, 15},
	{Group: "scheduling.k8s.io", Version: "v1beta1"}:       {16600, 12},
	{Group: "coordination.k8s.io", Version: "v1"}:          {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                  {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:             {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:              {16200, 21},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1"}:      {15800, 15},
	metrics: {100, 100}, // as metrics-server registers itself
}

// metrics is the group that another server may take over.
var metrics = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

// definedPriority is the place of the kinds that users define: behind Kubernetes' own.
var definedPriority = priority{1000, 100}

// local returns the APIService of a version that this server itself serves, or nil if it has none.
func local(gv schema.GroupVersion) *apiregistrationv1.APIService {
	p, ok := priorities[gv]
	if !ok {
		return nil
	}
	return apiService(gv, p)
}

func apiService(gv schema.GroupVersion, p priority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version,
		},
	}
}

// groupVersions returns the versions of groups among the paths of a server.
func groupVersions(paths []string) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, path := range paths {
		switch part := strings.Split(path, "/"); {
		case path == "/api/v1":
			out = append(out, schema.GroupVersion{Version: "v1"})
		case len(part) == 4 && part[1] == "apis":
			out = append(out, schema.GroupVersion{Group: part[2], Version: part[3]})
		}
	}
	return out
}
