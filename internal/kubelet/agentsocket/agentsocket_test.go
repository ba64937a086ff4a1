package agentsocket

import (
	"context"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRequestsAreLimited(t *testing.T) {
	limit := rate.NewLimiter(0, 4)
	ask, open := limited(limit), limitedStream(limit)
	for i := range 4 {
		_, err := ask(t.Context(), nil, nil, func(context.Context, any) (any, error) { return nil, nil })
		streamErr := open(nil, nil, nil, func(any, grpc.ServerStream) error { return nil })
		for _, err := range []error{err, streamErr} {
			if refused := status.Code(err) == codes.ResourceExhausted; refused != (i >= 2) {
				t.Errorf("request %d: %v", i, err)
			}
		}
	}
}
