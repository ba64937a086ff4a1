// Package serviceaccount answers requests for tokens of service accounts.
package serviceaccount

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/registry"
)

const (
	// projectedSeconds is what the ServiceAccount admission plugin asks for, a number that nobody
	// else would choose. Such a token really lasts extendedSeconds, so that programs that read it
	// only once keep working.
	projectedSeconds = 3607
	extendedSeconds  = 365 * 24 * 3600

	minSeconds = 600
	maxSeconds = 1 << 32
)

var (
	accounts = schema.GroupResource{Resource: "serviceaccounts"}
	pods     = schema.GroupResource{Resource: "pods"}
	nodes    = schema.GroupResource{Resource: "nodes"}
	secrets  = schema.GroupResource{Resource: "secrets"}

	tokenRequest = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
)

// Token is the endpoint serviceaccounts/NAME/token.
type Token struct {
	// Issuer signs.
	Issuer *token.Issuer
	// Audiences are this server's, used for requests that name none.
	Audiences []string
	// MaxSeconds limits what may be asked for; 0 means no limit.
	MaxSeconds int64
	// Lookup finds accounts, and the objects that tokens are bound to.
	Lookup *registry.Lookup
}

var (
	_ rest.NamedCreater                   = (*Token)(nil)
	_ rest.GroupVersionKindProvider       = (*Token)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Token)(nil)
)

// New implements rest.Storage.
func (t *Token) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy implements rest.Storage.
func (t *Token) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (t *Token) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return tokenRequest }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps the UID of the request, which must
// be the account's.
func (t *Token) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements rest.NamedCreater.
func (t *Token) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	req := obj.(*authenticationv1.TokenRequest)
	namespace := genericapirequest.NamespaceValue(ctx)
	account, err := registry.GetLive[*corev1.ServiceAccount](ctx, t.Lookup, accounts, namespace, name)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := t.prepare(req, account, now); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, req.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	issue := token.Request{Account: account, Audiences: req.Spec.Audiences}
	if err := t.bind(ctx, namespace, req.Spec.BoundObjectRef, &issue); err != nil {
		return nil, err
	}
	if t.MaxSeconds > 0 && *req.Spec.ExpirationSeconds > t.MaxSeconds {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *req.Spec.ExpirationSeconds, t.MaxSeconds))
		*req.Spec.ExpirationSeconds = t.MaxSeconds
	}
	asked := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	issue.Lifetime = asked
	if issue.Pod != nil && *req.Spec.ExpirationSeconds == projectedSeconds && t.onlyOurs(req.Spec.Audiences) {
		issue.Lifetime, issue.WarnAfter = extendedSeconds*time.Second, asked
	}
	signed, err := t.Issuer.Issue(issue, now)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	req.Status = authenticationv1.TokenRequestStatus{Token: signed, ExpirationTimestamp: metav1.NewTime(now.Add(asked))}
	return req, nil
}

// prepare checks the request against the account and fills in what it leaves open.
func (t *Token) prepare(req *authenticationv1.TokenRequest, account *corev1.ServiceAccount, now time.Time) error {
	meta := field.NewPath("metadata")
	var errs field.ErrorList
	if req.Name != "" && req.Name != account.Name {
		errs = append(errs, field.Invalid(meta.Child("name"), req.Name, "must match the service account name if specified"))
	}
	if req.Namespace != "" && req.Namespace != account.Namespace {
		errs = append(errs, field.Invalid(meta.Child("namespace"), req.Namespace, "must match the service account namespace if specified"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequest.GroupKind(), account.Name, errs)
	}
	if req.UID != "" && req.UID != account.UID {
		return conflict(account.Name, "the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, account.UID)
	}
	req.Name, req.Namespace, req.UID = account.Name, account.Namespace, account.UID
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authenticationv1.TokenRequestStatus{}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(t.Audiences)
	}
	if req.Spec.ExpirationSeconds == nil {
		req.Spec.ExpirationSeconds = new(int64(3600))
	}
	seconds := field.NewPath("spec", "expirationSeconds")
	switch s := *req.Spec.ExpirationSeconds; {
	case s < minSeconds:
		errs = append(errs, field.Invalid(seconds, s, "may not specify a duration less than 10 minutes"))
	case s > maxSeconds:
		errs = append(errs, field.Invalid(seconds, s, "may not specify a duration larger than 2^32 seconds"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequest.GroupKind(), "", errs)
	}
	return nil
}

// bind finds the object that the token will be bound to.
func (t *Token) bind(ctx context.Context, namespace string, to *authenticationv1.BoundObjectReference, issue *token.Request) error {
	if to == nil {
		return nil
	}
	var err error
	var uid types.UID
	gvk := schema.FromAPIVersionAndKind(to.APIVersion, to.Kind)
	switch {
	case gvk.Group != "":
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	case gvk.Kind == "Pod":
		if issue.Pod, err = registry.Get[*corev1.Pod](ctx, t.Lookup, pods, namespace, to.Name); err != nil {
			return err
		}
		if issue.Pod.Spec.ServiceAccountName != issue.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", issue.Account.Name))
		}
		if issue.Node, err = t.nodeOf(ctx, issue.Pod); err != nil {
			return err
		}
		uid = issue.Pod.UID
	case gvk.Kind == "Node":
		if issue.Node, err = registry.GetLive[*corev1.Node](ctx, t.Lookup, nodes, "", to.Name); err != nil {
			return err
		}
		uid = issue.Node.UID
	case gvk.Kind == "Secret":
		if issue.Secret, err = registry.GetLive[*corev1.Secret](ctx, t.Lookup, secrets, namespace, to.Name); err != nil {
			return err
		}
		uid = issue.Secret.UID
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	if to.UID != "" && to.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, to.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", to.UID))
	}
	return nil
}

// nodeOf returns the pod's node, or only its name if the node is gone. The token only carries it
// for information.
func (t *Token) nodeOf(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := registry.Get[*corev1.Node](ctx, t.Lookup, nodes, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, nil
	}
	return node, err
}

func (t *Token) onlyOurs(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(t.Audiences, a) {
			return false
		}
	}
	return true
}

func conflict(name, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Group: tokenRequest.Group, Resource: tokenRequest.Kind}, name, fmt.Errorf(format, args...))
}
