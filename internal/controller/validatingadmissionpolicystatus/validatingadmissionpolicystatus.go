// Package validatingadmissionpolicystatus checks the expressions of validating admission policies against
// the types that they are about, and writes into a policy's status what looks wrong. Policies are enforced
// without waiting for that.
package validatingadmissionpolicystatus

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	listersv1 "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"

	"wherry.dev/internal/controller"
)

// manager is upstream's name for this writer in managed fields.
const manager = "validatingadmissionpolicy-status-controller"

// Controller checks policies. Create one with New.
type Controller struct {
	client   clientset.Interface
	policies listersv1.ValidatingAdmissionPolicyLister
	loop     *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	policies := f.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &Controller{client: client, policies: policies.Lister()}
	c.loop = controller.NewLoop("ValidatingAdmissionPolicyStatus", c.reconcile)
	return c, c.loop.Watch(policies.Informer(), c.loop.AddObject)
}

// Run checks policies until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if policy.Generation <= policy.Status.ObservedGeneration {
		return nil
	}
	checking := applyv1.TypeChecking()
	for _, w := range c.checker().Check(policy) {
		checking.WithExpressionWarnings(applyv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	return c.write(ctx, policy, checking)
}

// checker returns a type checker that knows the kinds and schemas of this moment. Policies change seldom,
// and a schema that is kept costs megabytes.
func (c *Controller) checker() *validating.TypeChecker {
	kinds := memory.NewMemCacheClient(c.client.Discovery())
	return &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: c.client.Discovery()},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(kinds),
	}
}

func (c *Controller) write(ctx context.Context, policy *admissionv1.ValidatingAdmissionPolicy, checking *applyv1.TypeCheckingApplyConfiguration) error {
	status := applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(checking)
	apply := applyv1.ValidatingAdmissionPolicy(policy.Name).WithUID(policy.UID).WithStatus(status)
	_, err := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().
		ApplyStatus(ctx, apply, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of validating admission policy %s: %w", policy.Name, err)
	}
	return nil
}
