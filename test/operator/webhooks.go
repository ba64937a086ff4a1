package main

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"wherry.dev/test/operator/api"
)

// Both configurations fail closed: a shop that nobody looked at is not stored.
// +kubebuilder:webhookconfiguration:mutating=true,name=shop-operator
// +kubebuilder:webhookconfiguration:mutating=false,name=shop-operator
// +kubebuilder:webhook:path=/mutate-shop-wherry-dev-v1-shop,mutating=true,failurePolicy=fail,sideEffects=None,groups=shop.wherry.dev,resources=shops,verbs=create;update,versions=v1,name=mshop.shop.wherry.dev,admissionReviewVersions=v1,serviceName=shop-webhook,serviceNamespace=shop-system
// +kubebuilder:webhook:path=/validate-shop-wherry-dev-v1-shop,mutating=false,failurePolicy=fail,sideEffects=None,groups=shop.wherry.dev,resources=shops,verbs=create;update,versions=v1,name=vshop.shop.wherry.dev,admissionReviewVersions=v1,serviceName=shop-webhook,serviceNamespace=shop-system

// serveWebhooks serves defaults and rules for shops, and their conversion between the versions of the scheme.
func serveWebhooks(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &api.Shop{}).WithDefaulter(welcome{}).WithValidator(manners{}).Complete()
}

// welcome gives a shop a greeting if its owner did not.
type welcome struct{}

func (welcome) Default(_ context.Context, shop *api.Shop) error {
	if shop.Spec.Greeting == "" {
		shop.Spec.Greeting = "welcome to " + shop.Name
	}
	return nil
}

// manners refuses shops that shout.
type manners struct{}

func (manners) ValidateCreate(_ context.Context, shop *api.Shop) (admission.Warnings, error) {
	return nil, polite(shop)
}

func (manners) ValidateUpdate(_ context.Context, _, shop *api.Shop) (admission.Warnings, error) {
	return nil, polite(shop)
}

func (manners) ValidateDelete(context.Context, *api.Shop) (admission.Warnings, error) {
	return nil, nil
}

func polite(shop *api.Shop) error {
	greeting := shop.Spec.Greeting
	if greeting != strings.ToUpper(greeting) || greeting == strings.ToLower(greeting) {
		return nil
	}
	why := field.Invalid(field.NewPath("spec", "greeting"), greeting, "a greeting must not shout")
	return apierrors.NewInvalid(api.GroupVersion.WithKind("Shop").GroupKind(), shop.Name, field.ErrorList{why})
}
