package cri

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"
)

// flights are the verbs in progress that make something with a name. A call repeated after its
// caller gave up joins the one in flight instead of failing with "name is reserved".
type flights struct {
	mu sync.Mutex
	m  map[string]*flight
}

type flight struct {
	request proto.Message
	done    chan struct{}
	id      string
	err     error
}

var errClosing = errors.New("the runtime is shutting down")

// join runs fn under the key, or waits for the run in progress. fn ends with the server's
// context, not with the caller's.
func (s *Server) join(ctx context.Context, key string, req proto.Message, fn func(context.Context) (string, error)) (string, error) {
	f, err := s.board(ctx, key, req, fn)
	if err != nil {
		return "", err
	}
	select {
	case <-f.done:
		return f.id, f.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *Server) board(ctx context.Context, key string, req proto.Message, fn func(context.Context) (string, error)) (*flight, error) {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	if f, ok := s.flights.m[key]; ok {
		if !proto.Equal(f.request, req) {
			return nil, alreadyExists("%s is being made with a different configuration", key)
		}
		return f, nil
	}
	if s.ctx.Err() != nil {
		return nil, errClosing
	}
	f := &flight{request: req, done: make(chan struct{})}
	if s.flights.m == nil {
		s.flights.m = map[string]*flight{}
	}
	s.flights.m[key] = f
	s.work.Go(func() {
		ctx, cancel := s.detach(ctx)
		defer cancel()
		f.id, f.err = fn(ctx)
		s.flights.mu.Lock()
		delete(s.flights.m, key)
		s.flights.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// detach returns a context with the values of ctx that ends only with the server.
func (s *Server) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
