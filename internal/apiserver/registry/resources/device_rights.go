package resources

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
)

// What a claim for devices may say depends on who says it, and where: access to devices that others
// use needs a label of the namespace, an allocation the right to bind claims, and the status of a
// device that of its driver.

// adminRequests checks that a claim may ask for admin access.
func adminRequests(ctx context.Context, lookup *registry.Lookup, namespace string, requests []resourcev1.DeviceRequest) field.ErrorList {
	for i := range requests {
		if e := requests[i].Exactly; e != nil && e.AdminAccess != nil && *e.AdminAccess {
			return adminNamespace(ctx, lookup, namespace, field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

// adminResults checks that a claim may be given admin access that it did not have.
func adminResults(ctx context.Context, lookup *registry.Lookup, c, old *resourcev1.ResourceClaim) field.ErrorList {
	if adminResult(old) >= 0 {
		return nil
	}
	if i := adminResult(c); i >= 0 {
		return adminNamespace(ctx, lookup, c.Namespace, field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"))
	}
	return nil
}

// adminResult returns the first allocated device with admin access, or -1.
func adminResult(c *resourcev1.ResourceClaim) int {
	if c.Status.Allocation == nil {
		return -1
	}
	return slices.IndexFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.AdminAccess != nil && *r.AdminAccess
	})
}

func adminNamespace(ctx context.Context, lookup *registry.Lookup, namespace string, at *field.Path) field.ErrorList {
	ns, err := registry.Get[*corev1.Namespace](ctx, lookup, corev1.Resource("namespaces"), "", namespace)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))}
	}
	return nil
}

// right is what a request is checked for besides what it is: a subresource that has no path.
type right struct {
	authorizer.Attributes
	verb, subresource, namespace, name string
}

func (r *right) GetVerb() string        { return r.verb }
func (r *right) GetSubresource() string { return r.subresource }
func (r *right) GetNamespace() string   { return r.namespace }
func (r *right) GetName() string        { return r.name }

func (r *right) check(ctx context.Context, a authorizer.Authorizer) error {
	decision, reason, err := a.Authorize(ctx, r)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return responsewriters.ForbiddenStatusError(r, reason)
}

// mayBind checks that whoever allocates devices, or reserves them for a pod, may bind claims.
func mayBind(ctx context.Context, a authorizer.Authorizer, c, old *resourcev1.ResourceClaim) field.ErrorList {
	if apiequality.Semantic.DeepEqual(c.Status.Allocation, old.Status.Allocation) &&
		apiequality.Semantic.DeepEqual(c.Status.ReservedFor, old.Status.ReservedFor) {
		return nil
	}
	at := field.NewPath("status", "allocation")
	request, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	r := &right{Attributes: request, verb: request.GetVerb(), subresource: resourcev1.SubresourceBinding}
	if err := r.check(ctx, a); err != nil {
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf(`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, r.verb, err))}
	}
	return nil
}

// mayReportDevices checks that whoever changes the status of a device may speak for its driver: on
// every node, or on the node that the devices are on if it runs there.
func mayReportDevices(ctx context.Context, a authorizer.Authorizer, c, old *resourcev1.ResourceClaim) field.ErrorList {
	if c.Status.Allocation == nil {
		return nil // the statuses go with the devices
	}
	drivers := changedDrivers(c, old)
	if len(drivers) == 0 {
		return nil
	}
	at := field.NewPath("status", "devices")
	request, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + request.GetVerb()}
	if node := onlyNode(c.Status.Allocation.NodeSelector); node != "" && nodeOf(request.GetUser()) == node {
		verbs = append([]string{resourcev1.VerbPrefixAssociatedNode + request.GetVerb()}, verbs...)
	}
	var errs field.ErrorList
	for _, driver := range drivers {
		var first error
		allowed := slices.ContainsFunc(verbs, func(verb string) bool {
			r := &right{request, verb, resourcev1.SubresourceDriver, request.GetNamespace(), driver}
			err := r.check(ctx, a)
			if first == nil {
				first = err
			}
			return err == nil
		})
		if !allowed {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, first)))
		}
	}
	return errs
}

// changedDrivers returns the drivers of devices whose status came, went or changed.
func changedDrivers(c, old *resourcev1.ResourceClaim) []string {
	was, drivers := map[validation.DeviceID]*resourcev1.AllocatedDeviceStatus{}, map[string]bool{}
	for i := range old.Status.Devices {
		was[validation.IDOf(&old.Status.Devices[i])] = &old.Status.Devices[i]
	}
	for i := range c.Status.Devices {
		d := &c.Status.Devices[i]
		id := validation.IDOf(d)
		if before, ok := was[id]; !ok || !apiequality.Semantic.DeepEqual(before, d) {
			drivers[d.Driver] = true
		}
		delete(was, id)
	}
	for id := range was {
		drivers[id.Driver] = true
	}
	return slices.Sorted(maps.Keys(drivers))
}

// onlyNode returns the node that a selector names, if it does no more than that.
func onlyNode(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) != 1 {
		return ""
	}
	term := s.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	f := term.MatchFields[0]
	if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// nodeOf returns the node that a service account's token is bound to.
func nodeOf(u user.Info) string {
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil {
		return ""
	}
	if names := u.GetExtra()[serviceaccount.NodeNameKey]; len(names) == 1 {
		return names[0]
	}
	return ""
}
