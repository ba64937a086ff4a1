package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"wherry.dev/internal/image"
	"wherry.dev/internal/trace"
)

// Client talks to a running daemon through its control socket.
type Client struct{ http *http.Client }

// Dial returns a client for the daemon of the run dir.
func Dial(runDir string) *Client {
	socket := ControlSocket(runDir)
	return &Client{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close ends the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) open(ctx context.Context, method, path string, query url.Values) (io.ReadCloser, error) {
	resp, err := c.send(ctx, method, path, query, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// send returns the response if it is a success; the caller must close its body.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://wherry"+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach wherry; is it running, and with this --run-dir? %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	msg, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(string(msg))
	switch resp.StatusCode {
	case http.StatusNotFound:
		return nil, &remoteError{text, image.ErrNotFound}
	case http.StatusConflict:
		return nil, &remoteError{text, image.ErrInUse}
	}
	return nil, errors.New(text)
}

// remoteError carries the daemon's message and works with errors.Is.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

func (c *Client) call(ctx context.Context, method, path string, query url.Values, out any) error {
	body, err := c.open(ctx, method, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return json.NewDecoder(body).Decode(out)
}

// Trace returns the trace of a pod, found by its UID, or else by its name.
func (c *Client) Trace(ctx context.Context, uid, namespace, name string) (trace.Trace, error) {
	var t trace.Trace
	return t, c.call(ctx, http.MethodGet, "/trace", url.Values{"uid": {uid}, "namespace": {namespace}, "name": {name}}, &t)
}

// List returns the images.
func (c *Client) List(ctx context.Context) (imgs []image.Image, err error) {
	return imgs, c.call(ctx, http.MethodGet, "/images", nil, &imgs)
}

// Remove removes an image or one of its tags.
func (c *Client) Remove(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, "/images", url.Values{"ref": {ref}}, &struct{}{})
}

// Import imports the archive at an absolute path.
func (c *Client) Import(ctx context.Context, path string) (imgs []image.Image, err error) {
	return imgs, c.call(ctx, http.MethodPost, "/images/import", url.Values{"path": {path}}, &imgs)
}

// Prune removes the images that no container uses.
func (c *Client) Prune(ctx context.Context) (imgs []image.Image, err error) {
	return imgs, c.call(ctx, http.MethodPost, "/images/prune", nil, &imgs)
}
