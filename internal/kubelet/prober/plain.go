package prober

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// maxResponse is how much of a response is read, including headers.
const maxResponse = 1 << 20

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// plainGet makes the most common kind of probe, a single request on its own connection, without
// what an http.Client adds for all others: it costs half as much. It returns false, and leaves the
// probe to the client, if one response is not the answer, such as a redirect.
func (n *network) plainGet(req *http.Request) (answer, bool) {
	resp, done, err := n.exchange(req) //nolint:bodyclose // done closes the connection under it
	if err != nil {
		return answer{verdict: failure, text: (&url.Error{Op: "Get", URL: req.URL.String(), Err: err}).Error()}, true
	}
	defer done()
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.Header.Get("Location") != "" {
		return answer{}, false
	}
	return judge(resp), true
}

// exchange sends a request and reads the head of the response; done closes both.
func (n *network) exchange(req *http.Request) (*http.Response, func(), error) {
	ctx := req.Context()
	addr := req.URL.Host
	conn, err := n.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, inTime(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r := readers.Get().(*bufio.Reader)
	r.Reset(io.LimitReader(conn, maxResponse))
	done := func() {
		stop()
		_ = conn.Close()
		r.Reset(nil)
		readers.Put(r)
	}
	req.Close = true
	resp, err := ask(conn, r, req)
	if err != nil {
		done()
		return nil, nil, inTime(ctx, err)
	}
	return resp, done, nil // closing the body would read it to its end
}

func ask(conn net.Conn, r *bufio.Reader, req *http.Request) (*http.Response, error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	for {
		resp, err := http.ReadResponse(r, req)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // as clients report a server that hangs up
		}
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// inTime returns the context's error if a call failed because its time was up.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return ctx.Err()
	}
	return err
}
