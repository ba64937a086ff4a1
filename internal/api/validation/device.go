package validation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Expression checks an expression that selects devices. Whoever has a compiler brings it. Stored
// expressions were accepted before, perhaps by a newer server.
type Expression func(at *field.Path, expression string, stored bool) *field.Error

// DeviceClass checks a class of devices.
func DeviceClass(c *resourcev1.DeviceClass, check Expression) field.ErrorList {
	return deviceClass(c, &resourcev1.DeviceClass{}, check)
}

// DeviceClassUpdate checks a class that replaces old.
func DeviceClassUpdate(c, old *resourcev1.DeviceClass, check Expression) field.ErrorList {
	return deviceClass(c, old, check)
}

func deviceClass(c, old *resourcev1.DeviceClass, check Expression) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	d := &deviceContext{problems: p, check: check, stored: apiequality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors)}
	d.selectors(at.Child("selectors"), c.Spec.Selectors)
	stored := apiequality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config)
	listed(p, at.Child("config"), c.Spec.Config, resourcev1.DeviceConfigMaxSize, func(at path, c *resourcev1.DeviceClassConfiguration) {
		p.deviceConfiguration(at, &c.DeviceConfiguration, stored)
	})
	if n := c.Spec.ExtendedResourceName; n != nil && (!extended(corev1.ResourceName(*n)) || !strings.Contains(*n, "/")) {
		p.invalid(at.Child("extendedResourceName"), *n, "must be a valid extended resource name")
	}
	return p.list
}

// deviceContext is what the checks of a claim share.
type deviceContext struct {
	*problems
	check    Expression
	stored   bool
	requests map[string][]string // names of requests, and of their alternatives
}

// listed checks a list that has a greatest length. A longer one is not looked at.
func listed[T any](p *problems, at path, list []T, longest int, check func(at path, item *T)) bool {
	if len(list) > longest {
		p.add(field.TooMany(at, len(list), longest).WithOrigin("maxItems"))
		return false
	}
	for i := range list {
		check(at.Index(i), &list[i])
	}
	return true
}

// distinct does the same for a list whose items have keys that differ.
func distinct[T any, K comparable](p *problems, at path, list []T, longest int, check func(at path, item *T), key func(*T) K) {
	if !listed(p, at, list, longest, check) {
		return
	}
	seen := map[K]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			p.add(field.Duplicate(at.Index(i), k))
		}
		seen[k] = true
	}
}

func itself(s *string) string { return *s }

func (d *deviceContext) selectors(at path, list []resourcev1.DeviceSelector) {
	listed(d.problems, at, list, resourcev1.DeviceSelectorsMaxSize, func(at path, s *resourcev1.DeviceSelector) {
		if s.CEL == nil {
			d.required(at.Child("cel"), "")
			return
		}
		at = at.Child("cel", "expression")
		if len(s.CEL.Expression) > resourcev1.CELSelectorExpressionMaxLength {
			d.add(field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength))
			return
		}
		d.add(d.check(at, s.CEL.Expression, d.stored))
	})
}

func (p *problems) deviceConfiguration(at path, c *resourcev1.DeviceConfiguration, stored bool) {
	at = at.Child("opaque")
	if c.Opaque == nil {
		p.required(at, "")
		return
	}
	p.csiDriver(at.Child("driver"), c.Opaque.Driver)
	longest := resourcev1.OpaqueParametersMaxLength
	if stored {
		longest = len(c.Opaque.Parameters.Raw)
	}
	p.jsonObject(at.Child("parameters"), c.Opaque.Parameters, longest)
}

// jsonObject checks data that is required to be a JSON object. What is too long is not parsed.
func (p *problems) jsonObject(at path, data runtime.RawExtension, longest int) {
	var v any
	switch {
	case len(data.Raw) == 0:
		p.required(at, "")
		return
	case len(data.Raw) > longest:
		p.add(field.TooLong(at, "", longest))
		return
	}
	const omitted = "<value omitted>"
	if err := json.Unmarshal(data.Raw, &v); err != nil {
		p.invalid(at, omitted, "%s", fmt.Sprintf("error parsing data as JSON: %v", err))
	} else if v == nil {
		p.required(at, "")
	} else if _, ok := v.(map[string]any); !ok {
		p.invalid(at, omitted, "must be a valid JSON object")
	}
}

// ResourceClaim checks a claim for devices.
func ResourceClaim(c *resourcev1.ResourceClaim, check Expression) field.ErrorList {
	d := &deviceContext{problems: &problems{}, check: check}
	d.claim(field.NewPath("spec", "devices"), &c.Spec.Devices)
	return d.list
}

// ResourceClaimUpdate checks a claim that replaces old.
func ResourceClaimUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	p := &problems{}
	p.unchanged(field.NewPath("spec"), c.Spec, old.Spec)
	return p.list
}

// ResourceClaimTemplate checks what claims of pods are made from.
func ResourceClaimTemplate(t *resourcev1.ResourceClaimTemplate, check Expression) field.ErrorList {
	d, at := &deviceContext{problems: &problems{}, check: check}, field.NewPath("spec")
	d.templateMeta(at.Child("metadata"), &t.Spec.ObjectMeta)
	d.claim(at.Child("spec", "devices"), &t.Spec.Spec.Devices)
	return d.list
}

// ResourceClaimTemplateUpdate checks a template that replaces old.
func ResourceClaimTemplateUpdate(t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	p := &problems{}
	p.unchanged(field.NewPath("spec"), t.Spec, old.Spec)
	return p.list
}

func requestNames(c *resourcev1.DeviceClaim) map[string][]string {
	out := map[string][]string{}
	for i := range c.Requests {
		var sub []string
		for j := range c.Requests[i].FirstAvailable {
			sub = append(sub, c.Requests[i].FirstAvailable[j].Name)
		}
		out[c.Requests[i].Name] = sub
	}
	return out
}

func (d *deviceContext) claim(at path, c *resourcev1.DeviceClaim) {
	d.requests = requestNames(c)
	distinct(d.problems, at.Child("requests"), c.Requests, resourcev1.DeviceRequestsMaxSize, d.request,
		func(r *resourcev1.DeviceRequest) string { return r.Name })
	listed(d.problems, at.Child("constraints"), c.Constraints, resourcev1.DeviceConstraintsMaxSize, d.constraint)
	listed(d.problems, at.Child("config"), c.Config, resourcev1.DeviceConfigMaxSize, func(at path, c *resourcev1.DeviceClaimConfiguration) {
		distinct(d.problems, at.Child("requests"), c.Requests, resourcev1.DeviceRequestsMaxSize, d.requestRef, itself)
		d.deviceConfiguration(at, &c.DeviceConfiguration, false)
	})
}

func (d *deviceContext) request(at path, r *resourcev1.DeviceRequest) {
	d.label(at.Child("name"), r.Name)
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		d.required(at, one)
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		d.add(field.Invalid(at, nil, one+", but multiple fields are set"))
	}
	if e := r.Exactly; e != nil {
		d.wanted(at.Child("exactly"), wanted{e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations})
	}
	distinct(d.problems, at.Child("firstAvailable"), r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize,
		func(at path, s *resourcev1.DeviceSubRequest) {
			d.label(at.Child("name"), s.Name)
			d.wanted(at, wanted{s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations})
		},
		func(s *resourcev1.DeviceSubRequest) string { return s.Name })
}

// wanted is what the two kinds of requests have in common.
type wanted struct {
	class       string
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
}

func (d *deviceContext) wanted(at path, w wanted) {
	if class := at.Child("deviceClassName"); d.present(class, w.class) {
		d.subdomain(class, w.class)
	}
	d.selectors(at.Child("selectors"), w.selectors)
	switch count := at.Child("count"); w.mode {
	case resourcev1.DeviceAllocationModeAll:
		if w.count != 0 {
			d.invalid(count, w.count, "must not be specified when allocationMode is '%s'", w.mode)
		}
	case resourcev1.DeviceAllocationModeExactCount:
		d.positive(count, w.count)
	default:
		oneOf(d.problems, at.Child("allocationMode"), w.mode, resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount)
	}
	listed(d.problems, at.Child("tolerations"), w.tolerations, resourcev1.DeviceTolerationsMaxLength, d.deviceToleration)
}

var deviceEffects = []resourcev1.DeviceTaintEffect{
	resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone,
}

func (p *problems) deviceToleration(at path, t *resourcev1.DeviceToleration) {
	if t.Key != "" {
		p.addAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	}
	switch value := at.Child("value"); t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			p.invalid(value, t.Value, "must be empty for operator `Exists`")
		}
	case resourcev1.DeviceTolerationOpEqual:
		matches(p, value, t.Value, utilvalidation.IsValidLabelValue(t.Value))
	default:
		oneOfRequired(p, at.Child("operator"), t.Operator, resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists)
	}
	if t.Effect != "" {
		oneOf(p, at.Child("effect"), t.Effect, deviceEffects...)
	}
}

func (d *deviceContext) constraint(at path, c *resourcev1.DeviceConstraint) {
	distinct(d.problems, at.Child("requests"), c.Requests, resourcev1.DeviceRequestsMaxSize, d.requestRef, itself)
	if c.MatchAttribute != nil {
		d.fullName(at.Child("matchAttribute"), *c.MatchAttribute)
	}
	if c.DistinctAttribute != nil {
		d.fullName(at.Child("distinctAttribute"), *c.DistinctAttribute)
	}
	if c.MatchAttribute == nil && c.DistinctAttribute == nil {
		d.required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)
	}
}

// requestRef checks the name of a request, or of one of its alternatives: request/alternative.
func (d *deviceContext) requestRef(at path, name *string) {
	const known = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	parts := strings.Split(*name, "/")
	if len(parts) > 2 {
		d.invalid(at, *name, known)
		return
	}
	for _, part := range parts {
		d.label(at, part)
	}
	sub, ok := d.requests[parts[0]]
	if !ok || len(parts) == 2 && !slices.Contains(sub, parts[1]) {
		d.invalid(at, *name, known)
	}
}

// qualifiedDevice checks the name of an attribute, with or without a domain.
func (p *problems) qualifiedDevice(at path, name resourcev1.QualifiedName) {
	domain, id, found := strings.Cut(string(name), "/")
	if !found {
		p.identifier(at, domain)
		return
	}
	if domain == "" {
		p.invalid(at, "", "the domain must not be empty")
	} else {
		p.csiDriver(at, domain)
	}
	if id == "" {
		p.invalid(at, "", "the name must not be empty")
	} else {
		p.identifier(at, id)
	}
}

func (p *problems) fullName(at path, name resourcev1.FullyQualifiedName) {
	p.qualifiedDevice(at, resourcev1.QualifiedName(name))
	if !strings.Contains(string(name), "/") {
		p.invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash")
	}
}

func (p *problems) identifier(at path, id string) {
	if len(id) > resourcev1.DeviceMaxIDLength {
		p.add(field.TooLong(at, "", resourcev1.DeviceMaxIDLength))
	}
	matches(p, at, id, content.IsCIdentifier(id))
}
