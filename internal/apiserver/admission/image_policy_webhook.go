package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// imageAuditPrefix is that of the plugin's audit annotations.
	imageAuditPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	// imageReviewsKept is how many answers are remembered.
	imageReviewsKept = 1024
)

// imagePolicyConfig is the configuration. Times of 0 are the defaults, and -1 is none at all.
type imagePolicyConfig struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	AllowTTL       int64  `json:"allowTTL"`     // seconds
	DenyTTL        int64  `json:"denyTTL"`      // seconds
	RetryBackoff   int64  `json:"retryBackoff"` // milliseconds
	DefaultAllow   bool   `json:"defaultAllow"`
}

// imagePolicyWebhook asks a webhook, by an ImageReview, whether the images of a pod may be used.
type imagePolicyWebhook struct {
	ask          func(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error
	answers      *utilcache.LRUExpireCache // status by spec
	allow, deny  time.Duration             // how long an answer holds
	defaultAllow bool
}

var _ admission.ValidationInterface = (*imagePolicyWebhook)(nil)

func newImagePolicyWebhook(config io.Reader) (admission.Interface, error) {
	if config == nil {
		return nil, errors.New("no config specified; name one in the file of --admission-control-config-file")
	}
	var file struct {
		Config imagePolicyConfig `json:"imagePolicy"`
	}
	if err := readStrict("ImagePolicyWebhook", config, &file); err != nil {
		return nil, err
	}
	c := file.Config
	p := &imagePolicyWebhook{answers: utilcache.NewLRUExpireCache(imageReviewsKept), defaultAllow: c.DefaultAllow}
	var backoff time.Duration
	for _, d := range []struct {
		field       string
		value       int64
		unit        time.Duration
		least, most time.Duration
		fallback    time.Duration
		into        *time.Duration
	}{
		{"retryBackoff", c.RetryBackoff, time.Millisecond, 1, 5 * time.Minute, 500 * time.Millisecond, &backoff},
		{"allowTTL", c.AllowTTL, time.Second, time.Second, 30 * time.Minute, 5 * time.Minute, &p.allow},
		{"denyTTL", c.DenyTTL, time.Second, time.Second, 30 * time.Minute, 30 * time.Second, &p.deny},
	} {
		switch got := time.Duration(d.value) * d.unit; {
		case d.value == 0:
			*d.into = d.fallback
		case d.value == -1:
			*d.into = 0
		case d.value < 0 || got/d.unit != time.Duration(d.value) || got < d.least || got > d.most:
			return nil, fmt.Errorf("imagePolicy.%s: valid value is between %v and %v, got %v", d.field, d.least, d.most, got)
		default:
			*d.into = got
		}
	}
	client, err := imageReviewer(c.KubeConfigFile, backoff)
	if err != nil {
		return nil, fmt.Errorf("imagePolicy.kubeConfigFile: %w", err)
	}
	p.ask = client
	return p, nil
}

// imageReviewer returns what posts reviews to the server of a kubeconfig.
func imageReviewer(kubeconfig string, backoff time.Duration) (func(context.Context, *imagepolicyv1alpha1.ImageReview) error, error) {
	cfg, err := webhook.LoadKubeconfig(kubeconfig, nil)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := imagepolicyv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	hook, err := webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), cfg,
		[]schema.GroupVersion{imagepolicyv1alpha1.SchemeGroupVersion}, webhook.DefaultRetryBackoffWithInitialDelay(backoff))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
		result := hook.WithExponentialBackoff(ctx, func() rest.Result { return hook.RestClient.Post().Body(review).Do(ctx) })
		if err := result.Error(); err != nil {
			return err
		}
		var code int
		if result.StatusCode(&code); code < 200 || code >= 300 {
			return fmt.Errorf("Error contacting webhook: %d", code) //nolint:staticcheck // upstream's words
		}
		return result.Into(review)
	}, nil
}

func (*imagePolicyWebhook) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *imagePolicyWebhook) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetResource().GroupResource() != podsResource {
		return nil
	}
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{Namespace: a.GetNamespace(), Annotations: map[string]string{}}}
	add := func(image string) {
		review.Spec.Containers = append(review.Spec.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	switch a.GetSubresource() {
	case "":
		for i := range pod.Spec.Containers {
			add(pod.Spec.Containers[i].Image)
		}
		for i := range pod.Spec.InitContainers {
			add(pod.Spec.InitContainers[i].Image)
		}
	case "ephemeralcontainers":
		for i := range pod.Spec.EphemeralContainers {
			add(pod.Spec.EphemeralContainers[i].Image)
		}
	default:
		return nil
	}
	for key, value := range pod.Annotations {
		if strings.Contains(key, ".image-policy.k8s.io/") {
			review.Spec.Annotations[key] = value
		}
	}
	return p.review(ctx, a, review)
}

func (p *imagePolicyWebhook) review(ctx context.Context, a admission.Attributes, review *imagepolicyv1alpha1.ImageReview) error {
	doc, err := json.Marshal(review.Spec)
	if err != nil {
		return forbid(a, "%w", err)
	}
	key := string(doc)
	if known, ok := p.answers.Get(key); ok {
		review.Status, _ = known.(imagepolicyv1alpha1.ImageReviewStatus) // nothing else is put in
	} else {
		if err := p.ask(ctx, review); err != nil {
			return p.unanswered(ctx, a, err)
		}
		holds := p.deny
		if review.Status.Allowed {
			holds = p.allow
		}
		p.answers.Add(key, review.Status, holds)
	}
	for key, value := range review.Status.AuditAnnotations {
		annotate(ctx, a, key, value)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return forbid(a, "image policy webhook backend denied one or more images: %s", review.Status.Reason)
	}
	return forbid(a, "one or more images rejected by webhook backend")
}

// unanswered decides when the webhook does not.
func (p *imagePolicyWebhook) unanswered(ctx context.Context, a admission.Attributes, err error) error {
	if !p.defaultAllow {
		return admission.NewForbidden(a, err)
	}
	annotate(ctx, a, "failed-open", "true")
	return nil
}

// annotate adds to the request's audit event. A webhook may name keys that are none.
func annotate(ctx context.Context, a admission.Attributes, key, value string) {
	if err := a.AddAnnotation(imageAuditPrefix+key, value); err != nil {
		klog.FromContext(ctx).Info("Audit annotation refused", "plugin", "ImagePolicyWebhook", "key", imageAuditPrefix+key, "err", err)
	}
}
