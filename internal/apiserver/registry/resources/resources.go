// Package resources is the table of everything that the API server stores: one row per resource,
// and one file per group.
package resources

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/apiserver/auth"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/node"
	"wherry.dev/internal/apiserver/registry/service"
	"wherry.dev/internal/apiserver/registry/serviceaccount"
)

// Deps is what rows need from the server around them.
type Deps struct {
	Lookup   *registry.Lookup
	Kubelets *node.Connector
	Services *service.Allocator
	Tokens   *serviceaccount.Token
	Auth     *auth.Auth
	Mapper   meta.RESTMapper // of everything that is served here
	EventTTL time.Duration
	Features gated.Features // those that are on
}

// All returns the rows of all stored resources.
func All(deps Deps) []registry.Definition {
	all := []registry.Definition{
		pods(deps), nodes(deps), namespaces(), events(deps), configMaps(), secrets(), serviceAccounts(deps),
		services(deps), endpoints(), limitRanges(), resourceQuotas(), persistentVolumes(), persistentVolumeClaims(deps),
		replicaSets(deps), deployments(deps), daemonSets(deps), statefulSets(deps), controllerRevisions(), jobs(deps), cronJobs(deps),
		replicationControllers(deps), podTemplates(deps), podDisruptionBudgets(),
		leases(deps.Features), endpointSlices(), runtimeClasses(), priorityClasses(),
		certificateSigningRequests(), clusterTrustBundles(), podCertificateRequests(deps), storageClasses(), volumeAttachments(), csiNodes(deps.Features), csiDrivers(),
		csiStorageCapacities(), volumeAttributesClasses(),
		ingresses(), ingressClasses(), networkPolicies(), serviceCIDRs(), ipAddresses(), horizontalPodAutoscalers(),
		deviceClasses(), resourceClaims(deps), resourceClaimTemplates(deps), resourceSlices(), deviceTaintRules(),
		flowSchemas(), priorityLevelConfigurations(), storageVersionMigrations(),
		roles(deps), clusterRoles(deps), roleBindings(deps), clusterRoleBindings(deps),
		mutatingWebhookConfigurations(), validatingWebhookConfigurations(), validatingAdmissionPolicies(deps),
		validatingAdmissionPolicyBindings(deps), mutatingAdmissionPolicies(deps), mutatingAdmissionPolicyBindings(deps),
	}
	if deps.Features.PodGroups {
		all = append(all, workloads(deps.Features), podGroups(deps.Features))
	}
	return all
}

// dropIn is the hook of kinds that have a template of pods, which may be nil.
func dropIn[T any, PT interface {
	*T
	registry.Object
}](f gated.Features, template func(PT) *corev1.PodTemplateSpec) func(obj, old PT) {
	return func(obj, old PT) {
		if old == nil {
			old = new(T)
		}
		f.Template(template(obj), template(old))
	}
}

// onCreate and onUpdate turn checks that need no context into hooks of a strategy; always is for a
// check that does not need the old object.
func onCreate[T any](f func(T) field.ErrorList) func(context.Context, T) field.ErrorList {
	return func(_ context.Context, obj T) field.ErrorList { return f(obj) }
}

func onUpdate[T any](f func(obj, old T) field.ErrorList) func(_ context.Context, obj, old T) field.ErrorList {
	return func(_ context.Context, obj, old T) field.ErrorList { return f(obj, old) }
}

func always[T any](f func(T) field.ErrorList) func(_ context.Context, obj, old T) field.ErrorList {
	return func(_ context.Context, obj, _ T) field.ErrorList { return f(obj) }
}

// exceptOwn and exceptOwnUpdate skip the check for the server itself, so that it can publish its
// own address: on a machine without a network that is a loopback address, which others may not use.
func exceptOwn[T any](f func(context.Context, T) field.ErrorList) func(context.Context, T) field.ErrorList {
	return func(ctx context.Context, obj T) field.ErrorList {
		if ours(ctx) {
			return nil
		}
		return f(ctx, obj)
	}
}

func exceptOwnUpdate[T any](f func(_ context.Context, obj, old T) field.ErrorList) func(_ context.Context, obj, old T) field.ErrorList {
	return func(ctx context.Context, obj, old T) field.ErrorList {
		if ours(ctx) {
			return nil
		}
		return f(ctx, obj, old)
	}
}

func ours(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && u.GetName() == user.APIServerUser
}

// list returns the NewList function of a row.
func list[T any, PT interface {
	*T
	runtime.Object
}]() func() runtime.Object {
	return func() runtime.Object { return PT(new(T)) }
}

func gvr(gv schema.GroupVersion, resource string) schema.GroupVersionResource {
	return gv.WithResource(resource)
}

// bump raises metadata.generation if the spec changed, and keeps it otherwise.
func bump(obj, old metav1.Object, changed bool) {
	obj.SetGeneration(old.GetGeneration())
	if changed {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}
