package cri

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"wherry.dev/internal/cri/crierror"
)

// flights are the verbs in progress that make something with a name. A call repeated after its
// caller gave up joins the one in flight instead of failing with "name is reserved".
type flights struct {
	ctx  context.Context // ends when the server closes
	work *sync.WaitGroup // verbs in flight

	mu sync.Mutex // guards m
	m  map[string]*flight
}

type flight struct {
	request proto.Message
	done    chan struct{}
	id      string
	err     error
}

// join runs fn under the key, or waits for the run in progress. fn ends with the server's
// context, not with the caller's.
func (fs *flights) join(ctx context.Context, key string, req proto.Message, fn func(context.Context) (string, error)) (string, error) {
	f, err := fs.board(ctx, key, req, fn)
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

func (fs *flights) board(ctx context.Context, key string, req proto.Message, fn func(context.Context) (string, error)) (*flight, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, ok := fs.m[key]; ok {
		if !proto.Equal(f.request, req) {
			return nil, crierror.AlreadyExists("%s is being created with a different configuration", key)
		}
		return f, nil
	}
	if fs.ctx.Err() != nil {
		return nil, crierror.ErrClosing
	}
	f := &flight{request: req, done: make(chan struct{})}
	fs.m[key] = f
	fs.work.Go(func() {
		ctx, cancel := fs.detach(ctx)
		defer cancel()
		f.id, f.err = fn(ctx)
		fs.mu.Lock()
		delete(fs.m, key)
		fs.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// detach returns a context with the values of ctx that ends only with the server.
func (fs *flights) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(fs.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
