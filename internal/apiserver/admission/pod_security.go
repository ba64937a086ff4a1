package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"wherry.dev/internal/apiserver/registry"
)

// podSecurity holds pods to the Pod Security Standard that their namespace asks for by its labels, or
// else the configuration (PodSecurityConfiguration). The library decides.
type podSecurity struct{ *podsecurity.Admission }

var _ admission.ValidationInterface = podSecurity{}

// securityMetrics counts for all API servers of a process.
var securityMetrics = sync.OnceValue(func() metrics.Recorder {
	r := metrics.NewPrometheusRecorder(api.MajorMinorVersion(int(apiVersion.Major()), int(apiVersion.Minor())))
	r.MustRegister(legacyregistry.MustRegister)
	return r
})

func newPodSecurity(lookup *registry.Lookup, config io.Reader) (admission.Interface, error) {
	configuration, err := load.LoadFromReader(config)
	if err != nil {
		return nil, fmt.Errorf("configuration of admission plugin PodSecurity: %w", err)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	p := podSecurity{&podsecurity.Admission{
		Configuration: configuration, Evaluator: evaluator, Metrics: securityMetrics(),
		NamespaceGetter: securedNamespaces{registry.Keep[*corev1.Namespace](lookup, namespaceResource)}, PodLister: securedPods{lookup},
	}}
	if err := p.CompleteConfiguration(); err != nil {
		return nil, fmt.Errorf("configuration of admission plugin PodSecurity: %w", err)
	}
	if err := p.ValidateConfiguration(); err != nil {
		return nil, fmt.Errorf("configuration of admission plugin PodSecurity: %w", err)
	}
	return p, nil
}

func (podSecurity) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if resource != namespaceResource && !p.PodSpecExtractor.HasPodSpec(resource) {
		return nil
	}
	verdict := p.Admission.Validate(ctx, securedRequest{a})
	for _, w := range verdict.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for key, value := range verdict.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, api.AuditAnnotationPrefix+key, value)
	}
	if verdict.Allowed {
		return nil
	}
	return securityRefusal(a, verdict.Result)
}

// securityRefusal returns a refusal with what the library says about it.
func securityRefusal(a admission.Attributes, said *metav1.Status) error {
	err := admission.NewForbidden(a, errors.New("Not allowed by PodSecurity")) //nolint:staticcheck // upstream's words
	refusal, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || said == nil {
		return err
	}
	if said.Message != "" {
		refusal.ErrStatus.Message = said.Message
	}
	if said.Reason != "" {
		refusal.ErrStatus.Reason = said.Reason
	}
	if said.Details != nil {
		refusal.ErrStatus.Details = said.Details
	}
	if said.Code != 0 {
		refusal.ErrStatus.Code = said.Code
	}
	return refusal
}

// securedRequest is a request as the library wants it. The kinds that have pods are of v1 here.
type securedRequest struct{ admission.Attributes }

func (r securedRequest) GetObject() (runtime.Object, error) { return r.Attributes.GetObject(), nil }
func (r securedRequest) GetOldObject() (runtime.Object, error) {
	return r.Attributes.GetOldObject(), nil
}
func (r securedRequest) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(r.Attributes.GetOperation())
}
func (r securedRequest) GetUserName() string { return r.GetUserInfo().GetName() }

// securedNamespaces and securedPods are where the library reads from.
type (
	securedNamespaces struct {
		*registry.Kept[*corev1.Namespace]
	}
	securedPods struct{ lookup *registry.Lookup }
)

// GetNamespace implements podsecurity.NamespaceGetter. The library only reads the namespace, which is shared.
func (n securedNamespaces) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return n.Get(ctx, "", name)
}

// ListPods implements podsecurity.PodLister. The library only reads the pods, which are shared.
func (p securedPods) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	list, err := registry.List[*corev1.PodList](ctx, p.lookup, podsResource, namespace, everything)
	if err != nil {
		return nil, err
	}
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}
