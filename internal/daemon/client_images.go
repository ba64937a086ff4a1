package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"wherry.dev/internal/image"
)

// Pull pulls an image and reports its progress.
func (c *Client) Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error) {
	req, err := json.Marshal(pullRequest{Reference: ref, Auth: o.Auth})
	if err != nil {
		return image.Image{}, err
	}
	resp, err := c.send(ctx, http.MethodPost, "/images/pull", nil, bytes.NewReader(req))
	if err != nil {
		return image.Image{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	for dec := json.NewDecoder(resp.Body); ; {
		var m pullMessage
		if err := dec.Decode(&m); err != nil {
			return image.Image{}, fmt.Errorf("connection to wherry lost during the pull: %w", err)
		}
		switch {
		case m.Error != "":
			return image.Image{}, errors.New(m.Error)
		case m.Image != nil:
			return *m.Image, nil
		case m.Progress != nil && o.Progress != nil:
			o.Progress(*m.Progress)
		}
	}
}

// Pulls lists the pulls in progress.
func (c *Client) Pulls(ctx context.Context) (pulls []image.Pulling, err error) {
	return pulls, c.call(ctx, http.MethodGet, "/images/pulls", nil, &pulls)
}

// Export writes images as one archive.
func (c *Client) Export(ctx context.Context, w io.Writer, refs ...string) error {
	return c.receive(ctx, w, "/images/export", url.Values{"ref": refs})
}

// receive writes what the daemon streams.
func (c *Client) receive(ctx context.Context, w io.Writer, path string, query url.Values) error {
	resp, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("connection to wherry lost before all was received: %w", err)
	}
	if text := resp.Trailer.Get(errorTrailer); text != "" {
		return errors.New(text)
	}
	return nil
}
