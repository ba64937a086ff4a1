package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"k8s.io/klog/v2"

	"wherry.dev/internal/image"
)

// pullRequest asks for an image. It is sent in the body: a URL is not a place for secrets.
type pullRequest struct {
	Reference string     `json:"reference"`
	Auth      image.Auth `json:"auth"`
}

// pullMessage is one line of the answer to a pull: progress, then the image or the error.
type pullMessage struct {
	Progress *image.Progress `json:"progress,omitempty"`
	Image    *image.Image    `json:"image,omitempty"`
	Error    string          `json:"error,omitempty"`
}

func (c *control) pull(w http.ResponseWriter, r *http.Request) {
	var req pullRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&req); err != nil {
		answerError(w, http.StatusBadRequest, err)
		return
	}
	lines := make(chan pullMessage, 1)
	go c.pullInto(r.Context(), req, lines)
	enc, flush := json.NewEncoder(w), http.NewResponseController(w)
	for l := range lines {
		if err := errors.Join(enc.Encode(l), flush.Flush()); err != nil {
			klog.FromContext(r.Context()).V(2).Info("The client of an image pull disconnected", "err", err)
		}
	}
}

// pullInto pulls an image and closes lines after the last message.
func (c *control) pullInto(ctx context.Context, req pullRequest, lines chan<- pullMessage) {
	defer close(lines)
	img, err := c.images.Pull(ctx, req.Reference, image.PullOptions{Auth: req.Auth, Progress: func(p image.Progress) {
		select {
		case lines <- pullMessage{Progress: &p}:
		default: // the reader is busy: the next figure will do
		}
	}})
	if err != nil {
		lines <- pullMessage{Error: err.Error()}
		return
	}
	lines <- pullMessage{Image: &img}
}

func (c *control) pulls(w http.ResponseWriter, _ *http.Request) { answer(w, c.images.Pulls()) }

// errorTrailer carries what went wrong after an answer had begun.
const errorTrailer = "Wherry-Error"

func (c *control) export(w http.ResponseWriter, r *http.Request) {
	stream(w, r, "application/x-tar", func(ctx context.Context, out io.Writer) error {
		return c.images.Export(ctx, out, r.URL.Query()["ref"]...)
	})
}

// stream answers with what write writes.
func stream(w http.ResponseWriter, r *http.Request, contentType string, write func(context.Context, io.Writer) error) {
	out := &lateWriter{w: w, contentType: contentType}
	err := write(r.Context(), out)
	switch {
	case err == nil:
	case out.began:
		w.Header().Set(errorTrailer, err.Error())
	default:
		answerError(w, statusOf(err), err)
	}
}

// lateWriter announces the trailer with the first byte, so that an error before it can be an
// ordinary response.
type lateWriter struct {
	w           http.ResponseWriter
	contentType string
	began       bool
}

func (l *lateWriter) Write(p []byte) (int, error) {
	if !l.began {
		l.began = true
		l.w.Header().Set("Trailer", errorTrailer)
		l.w.Header().Set("Content-Type", l.contentType)
	}
	return l.w.Write(p)
}
