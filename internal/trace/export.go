package trace

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
)

// Export also sends the spans of this process to an OpenTelemetry collector, by OTLP over gRPC
// without TLS: perMillion out of a million traces. The returned function sends what is left and
// shuts the export down.
func Export(ctx context.Context, endpoint string, perMillion int32) (stop func(context.Context) error, err error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(endpoint))
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", endpoint, err)
	}
	chosen := &sampled{SpanProcessor: sdktrace.NewBatchSpanProcessor(exporter), of: sdktrace.TraceIDRatioBased(float64(perMillion) / 1e6)}
	if p, ok := otel.GetTracerProvider().(*sdktrace.TracerProvider); ok { // a Store's
		p.RegisterSpanProcessor(chosen)
		return func(ctx context.Context) error {
			p.UnregisterSpanProcessor(chosen)
			return chosen.Shutdown(ctx)
		}, nil
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(chosen), sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName("wherry"))))
	otel.SetTracerProvider(p)
	return p.Shutdown, nil
}

// sampled passes on the spans of some traces; the process itself records all of them.
type sampled struct {
	sdktrace.SpanProcessor
	of sdktrace.Sampler
}

// OnEnd implements sdktrace.SpanProcessor.
func (s *sampled) OnEnd(span sdktrace.ReadOnlySpan) {
	verdict := s.of.ShouldSample(sdktrace.SamplingParameters{TraceID: span.SpanContext().TraceID()})
	if verdict.Decision == sdktrace.RecordAndSample {
		s.SpanProcessor.OnEnd(span)
	}
}
