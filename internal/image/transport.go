package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// errStalled means that a registry kept a connection open and sent nothing.
var errStalled = errors.New("the registry sent nothing")

// transport watches every exchange with a registry: it cuts one that stalls, and if the registry
// asks us to slow down, it waits before it lets the caller try again.
type transport struct {
	next  http.RoundTripper
	stall time.Duration
}

// errEndless means that an answer that is read into memory, or to its end, is too long.
var errEndless = fmt.Errorf("the registry's answer has more than %d bytes", maxJSON)

// asBlob marks the exchanges whose answers may have any size: they go to a file, and must match
// what the manifest says.
type asBlob struct{}

// bounded limits the answers of all other exchanges: manifests, and those of token servers, which
// the library reads whatever they are.
func bounded(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	if ctx.Value(asBlob{}) != nil {
		return body
	}
	return &boundedBody{ReadCloser: body, left: maxJSON}
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errEndless
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return n, errEndless
	}
	return n, err
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	stalled := fmt.Errorf("%s: %w for %s", req.URL.Host, errStalled, t.stall)
	timer := time.AfterFunc(t.stall, func() { cancel(stalled) })
	resp, err := t.next.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		err = causeOf(ctx, err)
		cancel(nil)
		return nil, err
	}
	if err := yield(req.Context(), resp); err != nil {
		cancel(nil)
		return nil, errors.Join(err, resp.Body.Close())
	}
	resp.Body = &guardedBody{body: bounded(req.Context(), resp.Body), ctx: ctx, cancel: cancel, timer: timer, stall: t.stall}
	return resp, nil
}

// CloseIdleConnections closes connections that no exchange uses.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// causeOf returns why the exchange was cut, if err says only that it was.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, io.EOF) {
		return cause
	}
	return err
}

// maxRetryAfter is the longest wait that a registry may ask for.
const maxRetryAfter = 30 * time.Second

// yield waits for as long as a registry with too many requests asks for, or a second if it does
// not say: the library repeats the request at once.
func yield(ctx context.Context, resp *http.Response) error {
	if resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	wait := time.Second
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		wait = time.Duration(s) * time.Second
	} else if at, err := http.ParseTime(resp.Header.Get("Retry-After")); err == nil {
		wait = time.Until(at)
	}
	return sleep(ctx, min(max(wait, 0), maxRetryAfter))
}

// sleep waits for d, or returns early with the context's cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// guardedBody cuts the connection if a read takes too long. Time that the caller spends between
// reads does not count.
type guardedBody struct {
	body   io.ReadCloser
	ctx    context.Context //nolint:containedctx // the exchange's own, cancelled by Close
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.stall)
	n, err := b.body.Read(p)
	b.timer.Stop()
	if err != nil {
		err = causeOf(b.ctx, err)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.body.Close()
}
