package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/apiserver/storage"
)

// errNoData means that there is no API server, or not yet.
var errNoData = errors.New("no API server is ready in this process: wait until the node is, or ask the wherry up that has it")

// server returns the API server of this process.
func (c *control) server() (*apiserver.Server, error) {
	if c.api == nil || c.api.Load() == nil {
		return nil, errNoData
	}
	return c.api.Load(), nil
}

func (c *control) snapshot(w http.ResponseWriter, r *http.Request) {
	api, err := c.server()
	if err != nil {
		answerError(w, http.StatusServiceUnavailable, err)
		return
	}
	stream(w, r, "application/octet-stream", api.Snapshot)
}

func (c *control) compact(w http.ResponseWriter, r *http.Request) {
	keep(c, w, r, (*apiserver.Server).Compact)
}

func (c *control) defragment(w http.ResponseWriter, r *http.Request) {
	keep(c, w, r, (*apiserver.Server).Defragment)
}

// keep answers with what do returns.
func keep[T any](c *control, w http.ResponseWriter, r *http.Request, do func(*apiserver.Server, context.Context) (T, error)) {
	api, err := c.server()
	if err != nil {
		answerError(w, http.StatusServiceUnavailable, err)
		return
	}
	out, err := do(api, r.Context())
	if err != nil {
		answerError(w, http.StatusInternalServerError, err)
		return
	}
	answer(w, out)
}

func (c *control) members(w http.ResponseWriter, r *http.Request) {
	keep(c, w, r, func(s *apiserver.Server, _ context.Context) ([]storage.Member, error) { return s.Members() })
}

func (c *control) removeMember(w http.ResponseWriter, r *http.Request) {
	who := r.URL.Query().Get("who")
	keep(c, w, r, func(s *apiserver.Server, ctx context.Context) (storage.Member, error) {
		return s.RemoveMember(ctx, who)
	})
}

// Members returns the etcds of the cluster's servers.
func (c *Client) Members(ctx context.Context) (out []storage.Member, err error) {
	return out, c.call(ctx, http.MethodGet, "/etcd/members", nil, &out)
}

// RemoveMember takes the etcd of a server out of the cluster, by its name or ID.
func (c *Client) RemoveMember(ctx context.Context, who string) (out storage.Member, err error) {
	return out, c.call(ctx, http.MethodDelete, "/etcd/members", url.Values{"who": {who}}, &out)
}

// Compact drops all revisions of the cluster's data before the present one, and returns that.
func (c *Client) Compact(ctx context.Context) (revision int64, err error) {
	return revision, c.call(ctx, http.MethodPost, "/etcd/compact", nil, &revision)
}

// Defragment gives the room of what was compacted back to the disk.
func (c *Client) Defragment(ctx context.Context) (out []storage.Defragmented, err error) {
	return out, c.call(ctx, http.MethodPost, "/etcd/defrag", nil, &out)
}

// SaveSnapshot makes a file of the cluster's data as they are now.
func (c *Client) SaveSnapshot(ctx context.Context, path string) (storage.Snapshot, error) {
	return storage.SaveSnapshot(path, func(w io.Writer) error { return c.receive(ctx, w, "/etcd/snapshot", nil) })
}

// RestoreSnapshot makes the cluster's data of an instance that is stopped from a snapshot. Its Dir need
// not be set.
func RestoreSnapshot(dataDir string, r storage.Restore) (out storage.Restored, err error) {
	if err := checkDataDir(dataDir); err != nil {
		return out, err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return out, err
	}
	lock, err := lockInstance(dataDir)
	if err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	return apiserver.RestoreSnapshot(dataDir, r)
}
