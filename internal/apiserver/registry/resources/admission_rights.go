package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A policy reads its parameters with the server's rights, and its messages can tell what they hold. So
// whoever makes a policy must be allowed to read all objects of the kind, and whoever binds it those
// that the binding refers to. What cannot be found out must be allowed in general.

const anything = "*"

// mayReadKind returns why the user may not make a policy with parameters of that kind.
func (d Deps) mayReadKind(ctx context.Context, kind, old *admissionv1.ParamKind) *field.Error {
	if kind == nil || old != nil && *old == *kind || trusted(ctx) {
		return nil
	}
	at := field.NewPath("spec", "paramKind")
	u, ok := request.UserFrom(ctx)
	if !ok {
		return field.Forbidden(at, "cannot identify user to authorize read access to paramKind resources")
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: "get", ResourceRequest: true, Name: anything, Namespace: anything,
		APIGroup: anything, APIVersion: anything, Resource: anything,
	}
	if gv, err := schema.ParseGroupVersion(kind.APIVersion); err == nil {
		attrs.APIGroup, attrs.APIVersion = gv.Group, gv.Version
		if mapping, err := d.Mapper.RESTMapping(gv.WithKind(kind.Kind).GroupKind(), gv.Version); err == nil {
			attrs.Resource = mapping.Resource.Resource
		}
	}
	decision, _, err := d.Auth.Authorizer.Authorize(ctx, attrs)
	if err != nil {
		return field.Forbidden(at, err.Error())
	}
	if decision != authorizer.DecisionAllow {
		return field.Forbidden(at, fmt.Sprintf(`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, u, kind.Kind, kind.APIVersion))
	}
	return nil
}

// params are what a binding binds to which policy.
type params struct {
	policy string
	ref    *admissionv1.ParamRef
}

// kindOf returns the kind of a policy's parameters.
type kindOf func(ctx context.Context, policy string) (*admissionv1.ParamKind, error)

// mayReadParams returns why the user may not bind a policy to these parameters, if they are not the old
// ones.
func (d Deps) mayReadParams(ctx context.Context, kind kindOf, now, old params) *field.Error {
	ref := now.ref
	if ref == nil || trusted(ctx) || now.policy == old.policy && apiequality.Semantic.DeepEqual(ref, old.ref) {
		return nil
	}
	at := field.NewPath("spec", "paramRef")
	u, ok := request.UserFrom(ctx)
	if !ok {
		return field.Forbidden(at, "cannot identify user to authorize read access to paramRef object")
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: "get", ResourceRequest: true, Name: ref.Name, Namespace: ref.Namespace,
		APIGroup: anything, APIVersion: anything, Resource: anything,
	}
	if ref.Name == "" {
		attrs.Verb = "list"
	}
	unknown := d.narrow(ctx, &attrs, kind, now.policy)
	decision, _, err := d.Auth.Authorizer.Authorize(ctx, attrs)
	switch {
	case err != nil:
		return field.Forbidden(at, fmt.Sprintf("failed to authorize request: %v", err))
	case decision == authorizer.DecisionAllow:
		return nil
	case unknown != nil:
		return field.Forbidden(at, fmt.Sprintf("%v to determine minimum required permissions and user %v does not have %q permission for all groups, versions and resources", unknown, u, attrs.Verb))
	}
	return field.Forbidden(at, fmt.Sprintf("user %v does not have %q permission on the object referenced by paramRef", u, attrs.Verb))
}

// narrow sets the resource of a policy's parameters. It returns what it could not find out.
func (d Deps) narrow(ctx context.Context, attrs *authorizer.AttributesRecord, of kindOf, policy string) error {
	kind, err := of(ctx, policy)
	if err != nil || kind == nil {
		return fmt.Errorf("unable to get policy %s", policy)
	}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return fmt.Errorf("unable to parse paramKind %v", *kind)
	}
	attrs.APIGroup, attrs.APIVersion = gv.Group, gv.Version
	mapping, err := d.Mapper.RESTMapping(gv.WithKind(kind.Kind).GroupKind(), gv.Version)
	if err != nil {
		return errors.New("unable to resolve paramKind " + kind.APIVersion + " " + kind.Kind)
	}
	attrs.Resource = mapping.Resource.Resource
	return nil
}

// trusted reports whether a request may do everything.
func trusted(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}
