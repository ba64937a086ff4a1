package loopback

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
)

// transport is a RoundTripper that hands requests directly to the server's handler: no socket, no
// TLS, no HTTP framing. The user is in the request's context, which nothing outside the process can
// write, so authorization and admission see an ordinary authenticated request.
//
// A request that upgrades its connection (exec, attach, port-forward) needs a real one, and goes to
// next, over TLS.
type transport struct {
	clients *Clients
	user    user.Info
	next    http.RoundTripper
}

type userKey struct{}

// userFrom returns the user of an in-process request.
func userFrom(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(userKey{}).(user.Info)
	return u, ok
}

var errEarly = errors.New("the API server does not serve requests yet")

// RoundTrip implements http.RoundTripper. The handler runs in a goroutine of its own that ends when
// the request's context ends or the body is closed.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if upgrades(req) {
		return t.next.RoundTrip(req)
	}
	handler := t.clients.handler.Load()
	if handler == nil {
		return nil, errEarly
	}
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), userKey{}, t.user))
	body := req.Body
	if body == nil {
		body = http.NoBody
	}
	in := req.Clone(ctx)
	in.Header.Del("Authorization")
	in.Body = body
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	w := newPipeWriter(cancel)
	go w.serve(*handler, in)
	select {
	case <-w.started:
		return w.response(req), nil
	case <-req.Context().Done():
		// The handler may have answered at the same moment; then nobody reads its answer.
		w.abandon(req.Context().Err())
		return nil, req.Context().Err()
	}
}

// upgrades reports whether the answer will be a connection. The streams of client-go set the
// Upgrade header only further down, in next, but name their protocols before.
func upgrades(req *http.Request) bool {
	return req.Header.Get("Upgrade") != "" || req.Header.Get("Sec-Websocket-Protocol") != "" || req.Header.Get("X-Stream-Protocol-Version") != ""
}

// pipeWriter is the http.ResponseWriter of an in-process request. Until the reader
// falls behind, writes go to a buffer and do not wait for it.
type pipeWriter struct {
	started chan struct{}
	cancel  context.CancelFunc
	header  http.Header
	status  int
	sent    http.Header // a snapshot of header, taken when the status is written

	mu     sync.Mutex
	change *sync.Cond // uses mu; signalled when buf, done or gone changes
	buf    []byte     // the first read bytes of it have been read
	read   int
	err    error // what Read returns once buf is empty
	done   bool  // the handler has returned
	gone   error // why the reader has left, or nil
}

// pipeHighWater is the number of unread bytes at which the handler waits for the reader.
const pipeHighWater = 1 << 20

// pipeKeep is the size up to which a buffer is used again for what comes next: a watch's events come
// one by one, and few are larger.
const pipeKeep = 8 << 10

func newPipeWriter(cancel context.CancelFunc) *pipeWriter {
	w := &pipeWriter{started: make(chan struct{}), cancel: cancel, header: http.Header{}}
	w.change = sync.NewCond(&w.mu)
	return w
}

func (w *pipeWriter) serve(handler http.Handler, req *http.Request) {
	defer w.cancel()
	defer func() {
		err := error(io.EOF)
		if r := recover(); r != nil {
			err = io.ErrUnexpectedEOF // http.ErrAbortHandler and worse: the stream ends broken
			if w.status == 0 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}
		w.finish(err)
	}()
	handler.ServeHTTP(w, req)
}

func (w *pipeWriter) finish(err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done, w.err = true, err
	w.change.Broadcast()
}

// Header implements http.ResponseWriter.
func (w *pipeWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *pipeWriter) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.sent = status, w.header.Clone()
	close(w.started)
}

// Write implements http.ResponseWriter.
func (w *pipeWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf)-w.read > pipeHighWater && w.gone == nil {
		w.change.Wait()
	}
	if w.gone != nil {
		return 0, w.gone
	}
	if w.read > 0 && len(w.buf)+len(p) > cap(w.buf) {
		w.buf, w.read = w.buf[:copy(w.buf, w.buf[w.read:])], 0
	}
	w.buf = append(w.buf, p...)
	w.change.Broadcast()
	return len(p), nil
}

// Flush implements http.Flusher. It does nothing, because nothing is held back.
func (w *pipeWriter) Flush() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
}

// CloseNotify implements http.CloseNotifier. The library requires that before it streams a
// response, but everybody listens to the request's context.
func (w *pipeWriter) CloseNotify() <-chan bool { return make(chan bool) }

// Read reads the response's body.
func (w *pipeWriter) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) == 0 && !w.done && w.gone == nil {
		w.change.Wait()
	}
	if w.gone != nil {
		return 0, w.gone
	}
	if len(w.buf) == 0 {
		return 0, w.err
	}
	n := copy(p, w.buf[w.read:])
	w.read += n
	if w.read == len(w.buf) {
		w.buf, w.read = w.buf[:0], 0
		if cap(w.buf) > pipeKeep {
			w.buf = nil
		}
	}
	w.change.Broadcast()
	return n, nil
}

// Close closes the response's body: the reader leaves.
func (w *pipeWriter) Close() error {
	w.abandon(http.ErrBodyReadAfterClose)
	return nil
}

func (w *pipeWriter) abandon(err error) {
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone == nil {
		w.gone = err
	}
	w.buf, w.read = nil, 0
	w.change.Broadcast()
}

func (w *pipeWriter) response(req *http.Request) *http.Response {
	return &http.Response{
		Status:     strings.TrimSpace(http.StatusText(w.status)),
		StatusCode: w.status,
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header:        w.sent,
		Body:          w,
		ContentLength: -1,
		Request:       req,
	}
}

var (
	_ http.Flusher  = (*pipeWriter)(nil)
	_ io.ReadCloser = (*pipeWriter)(nil)
)
