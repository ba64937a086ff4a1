package resources

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func deviceClasses() registry.Row[*resourcev1.DeviceClass] {
	type class = *resourcev1.DeviceClass
	return registry.Row[class]{
		Resource:  gvr(resourcev1.SchemeGroupVersion, "deviceclasses"),
		Kind:      "DeviceClass",
		Singular:  "deviceclass",
		New:       func() class { return &resourcev1.DeviceClass{} },
		NewList:   list[resourcev1.DeviceClassList](),
		Table:     printers.DeviceClasses,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[class]{
			Create:   func(_ context.Context, c class) { c.Generation = 1 },
			Update:   func(_ context.Context, c, old class) { bump(c, old, !apiequality.Semantic.DeepEqual(c.Spec, old.Spec)) },
			Validate: func(_ context.Context, c class) field.ErrorList { return validation.DeviceClass(c, deviceExpression) },
			ValidateUpdate: func(_ context.Context, c, old class) field.ErrorList {
				return validation.DeviceClassUpdate(c, old, deviceExpression)
			},
		},
		ReturnDeleted: true,
	}
}

// deviceExpression compiles an expression that selects devices. The compiler is made for the first.
func deviceExpression(at *field.Path, expression string, stored bool) *field.Error {
	kind := environment.NewExpressions
	if stored {
		kind = environment.StoredExpressions
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	result := compiler.CompileCELExpression(expression, dracel.Options{EnvType: &kind})
	var err *cel.Error
	switch {
	case result.Error == nil && result.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.Forbidden(at, "too complex, exceeds cost limit")
	case result.Error == nil:
		return nil
	case errors.As(result.Error, &err) && err.Type == cel.ErrorTypeRequired:
		return field.Required(at, err.Detail)
	case errors.As(result.Error, &err) && err.Type == cel.ErrorTypeInvalid:
		return field.Invalid(at, expression, err.Detail)
	}
	return field.InternalError(at, result.Error)
}

func resourceClaims(deps Deps) registry.Row[*resourcev1.ResourceClaim] {
	type claim = *resourcev1.ResourceClaim
	return registry.Row[claim]{
		Resource:   gvr(resourcev1.SchemeGroupVersion, "resourceclaims"),
		Kind:       "ResourceClaim",
		Singular:   "resourceclaim",
		Namespaced: true,
		New:        func() claim { return &resourcev1.ResourceClaim{} },
		NewList:    list[resourcev1.ResourceClaimList](),
		Table:      printers.ResourceClaims,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[claim]{
			Create: func(_ context.Context, c claim) {
				c.Status = resourcev1.ResourceClaimStatus{}
				dropDerived(c.Spec.Devices.Requests)
			},
			Update: func(_ context.Context, c, old claim) { c.Status = old.Status },
			Validate: func(ctx context.Context, c claim) field.ErrorList {
				return append(adminRequests(ctx, deps.Lookup, c.Namespace, c.Spec.Devices.Requests), validation.ResourceClaim(c, deviceExpression)...)
			},
			ValidateUpdate: onUpdate(validation.ResourceClaimUpdate),
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[claim]{
			Update: func(_ context.Context, c, old claim) {
				c.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
				dropGivenUp(c, old)
			},
			ValidateUpdate: func(ctx context.Context, c, old claim) field.ErrorList {
				errs := adminResults(ctx, deps.Lookup, c, old)
				errs = append(errs, mayBind(ctx, deps.Auth.Authorizer, c, old)...)
				errs = append(errs, mayReportDevices(ctx, deps.Auth.Authorizer, c, old)...)
				return append(errs, validation.ResourceClaimStatusUpdate(c, old)...)
			},
			Reset: []string{"metadata", "spec"},
		},
	}
}

// dropDerived clears a field that is off by default (DRADerivedAttributes). Specs do not change later.
func dropDerived(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		if e := requests[i].Exactly; e != nil {
			e.DerivedAttributes = nil
		}
		for j := range requests[i].FirstAvailable {
			requests[i].FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

// dropGivenUp removes the statuses of devices that the claim no longer has, for clients that do not
// know of these statuses.
func dropGivenUp(c, old *resourcev1.ResourceClaim) {
	had, has := validation.Allocated(old), validation.Allocated(c)
	var kept []resourcev1.AllocatedDeviceStatus
	for i := range c.Status.Devices {
		if id := validation.IDOf(&c.Status.Devices[i]); !had[id] || has[id] {
			kept = append(kept, c.Status.Devices[i])
		}
	}
	c.Status.Devices = kept
}

func resourceClaimTemplates(deps Deps) registry.Row[*resourcev1.ResourceClaimTemplate] {
	type template = *resourcev1.ResourceClaimTemplate
	return registry.Row[template]{
		Resource:   gvr(resourcev1.SchemeGroupVersion, "resourceclaimtemplates"),
		Kind:       "ResourceClaimTemplate",
		Singular:   "resourceclaimtemplate",
		Namespaced: true,
		New:        func() template { return &resourcev1.ResourceClaimTemplate{} },
		NewList:    list[resourcev1.ResourceClaimTemplateList](),
		Table:      printers.ResourceClaimTemplates,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[template]{
			Create: func(_ context.Context, t template) { dropDerived(t.Spec.Spec.Devices.Requests) },
			Validate: func(ctx context.Context, t template) field.ErrorList {
				return append(adminRequests(ctx, deps.Lookup, t.Namespace, t.Spec.Spec.Devices.Requests),
					validation.ResourceClaimTemplate(t, deviceExpression)...)
			},
			ValidateUpdate: onUpdate(validation.ResourceClaimTemplateUpdate),
		},
		ReturnDeleted: true,
	}
}

func resourceSlices() registry.Row[*resourcev1.ResourceSlice] {
	type slice = *resourcev1.ResourceSlice
	return registry.Row[slice]{
		Resource:  gvr(resourcev1.SchemeGroupVersion, "resourceslices"),
		Kind:      "ResourceSlice",
		Singular:  "resourceslice",
		New:       func() slice { return &resourcev1.ResourceSlice{} },
		NewList:   list[resourcev1.ResourceSliceList](),
		Table:     printers.ResourceSlices,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[slice]{
			Create: func(_ context.Context, s slice) {
				s.Generation = 1
				dropAlpha(s, &resourcev1.ResourceSlice{})
			},
			Update: func(_ context.Context, s, old slice) {
				dropAlpha(s, old)
				bump(s, old, !apiequality.Semantic.DeepEqual(s.Spec, old.Spec))
			},
			Validate:       onCreate(validation.ResourceSlice),
			ValidateUpdate: onUpdate(validation.ResourceSliceUpdate),
			Warn: func(_ context.Context, s slice) []string {
				if s.Spec.Driver == strings.ToLower(s.Spec.Driver) {
					return nil
				}
				return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", s.Spec.Driver)}
			},
		},
		ReturnDeleted: true,
		Fields: func(s slice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: ptr.Deref(s.Spec.NodeName, ""), resourcev1.ResourceSliceSelectorDriver: s.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
			}
		},
		FieldLabels: []string{
			resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver, resourcev1.ResourceSliceSelectorPoolName,
		},
		Index: &registry.Index[slice]{
			Field: resourcev1.ResourceSliceSelectorNodeName, Value: func(s slice) string { return ptr.Deref(s.Spec.NodeName, "") },
		},
	}
}

// alphaFields are the fields of slices that are off by default.
type alphaFields struct {
	lists, allocatable, groups bool // in devices
}

func alphaIn(s *resourcev1.ResourceSlice) alphaFields {
	var out alphaFields
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for _, a := range d.Attributes {
			out.lists = out.lists || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
		}
		out.allocatable = out.allocatable || d.NodeAllocatableResources != nil
		for _, c := range d.ConsumesCounters {
			out.groups = out.groups || c.CompatibilityGroups != nil
		}
	}
	return out
}

// dropAlpha clears fields that are off by default, unless they have been in use.
func dropAlpha(s, old *resourcev1.ResourceSlice) {
	used := alphaIn(old)
	if old.Spec.PartitionTypeAttribute == nil {
		s.Spec.PartitionTypeAttribute = nil
	}
	if old.Spec.SkipNodeOperations == nil {
		s.Spec.SkipNodeOperations = nil
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for name, a := range d.Attributes {
			if !used.lists {
				a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
				d.Attributes[name] = a
			}
		}
		if !used.allocatable {
			d.NodeAllocatableResources = nil
		}
		for j := range d.ConsumesCounters {
			if !used.groups {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
	}
}
