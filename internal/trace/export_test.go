package trace

import (
	"context"
	"net"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// spans is a collector.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names []string
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.names = append(s.names, span.Name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansAreExported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got, srv := &spans{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, got)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	shutdown := NewStore().Install()
	for _, tc := range []struct {
		perMillion int32
		span       string
		want       int
	}{{1000000, "all", 1}, {0, "none", 1}} {
		stop, err := Export(t.Context(), l.Addr().String(), tc.perMillion)
		if err != nil {
			t.Fatal(err)
		}
		_, span := Start(t.Context(), tc.span)
		if err := End(span, nil); err != nil {
			t.Fatal(err)
		}
		if err := stop(t.Context()); err != nil {
			t.Error(err)
		}
		if got.mu.Lock(); len(got.names) != tc.want || got.names[0] != "all" {
			t.Errorf("%d of a million: %q", tc.perMillion, got.names)
		}
		got.mu.Unlock()
	}
	if err := shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
