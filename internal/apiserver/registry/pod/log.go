package pod

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Log is the endpoint pods/NAME/log.
type Log struct {
	pods     getter
	kubelets kubelets
}

var (
	_ rest.GetterWithOptions = (*Log)(nil)
	_ rest.StorageMetadata   = (*Log)(nil)
)

// NewLog returns the endpoint.
func NewLog(pods getter, kubelets kubelets) *Log { return &Log{pods, kubelets} }

// New implements rest.Storage.
func (l *Log) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements rest.Storage.
func (l *Log) Destroy() {}

// ProducesMIMETypes implements rest.StorageMetadata.
func (l *Log) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements rest.StorageMetadata.
func (l *Log) ProducesObject(string) any { return "" }

// NewGetOptions implements rest.GetterWithOptions.
func (l *Log) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// OverrideMetricsVerb counts following a log separately from reading it.
func (l *Log) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements rest.GetterWithOptions. The result is streamed from the kubelet.
func (l *Log) Get(ctx context.Context, name string, opts runtime.Object) (runtime.Object, error) {
	o, ok := opts.(*corev1.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %T", opts)
	}
	if o.Stream == nil {
		o.Stream = new(corev1.LogStreamAll)
	}
	if errs := validateLogOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	p, err := getPod(ctx, l.pods, name)
	if err != nil {
		return nil, err
	}
	container, err := pickContainer(o.Container, p)
	if err != nil {
		return nil, err
	}
	stream := &genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	if p.Spec.NodeName == "" {
		return stream, nil // not bound to a node yet, so there is no log
	}
	kubelet, err := l.kubelets.Kubelet(ctx, p.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	location := kubelet.URL
	location.Path = "/containerLogs/" + p.Namespace + "/" + p.Name + "/" + container
	location.RawQuery = logParams(o).Encode()
	stream.Location, stream.Transport = &location, kubelet.Transport
	if o.InsecureSkipTLSVerifyBackend {
		stream.Transport = kubelet.Unchecked
	}
	return stream, nil
}

func logParams(o *corev1.PodLogOptions) url.Values {
	params := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			params.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if n != nil {
			params.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		params.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	params.Set("stream", *o.Stream)
	return params
}

func validateLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	allowed := []string{corev1.LogStreamStdout, corev1.LogStreamStderr, corev1.LogStreamAll}
	stream := field.NewPath("stream")
	switch *o.Stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.TailLines != nil {
			errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	default:
		errs = append(errs, field.NotSupported(stream, *o.Stream, allowed))
	}
	return errs
}
