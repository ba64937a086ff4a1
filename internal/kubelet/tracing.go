package kubelet

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/trace"
)

const (
	// collector is where OpenTelemetry's agent listens on most machines.
	collector = "localhost:4317"
	// lastSpans is how long sending the last spans may take when the kubelet stops.
	lastSpans = 2 * time.Second
)

// exportTraces sends spans to a collector if the configuration names one.
func (k *Kubelet) exportTraces(ctx context.Context) (stop func(), err error) {
	t := k.cfg.Tracing
	if t == nil {
		return func() {}, nil
	}
	end, err := trace.Export(ctx, ptr.Deref(t.Endpoint, collector), ptr.Deref(t.SamplingRatePerMillion, 0))
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := end(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to export the last spans")
		}
	}, nil
}
