package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("container")
	p, ok := s.pods.ByName(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	if podplan.FindContainer(p.Pod, name) == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, p.Pod.Name), http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	opts, err := logOptions(q, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	c, err := whoseLog(p, name, flag(q, "previous"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if opts.Follow {
		opts.Ended = s.ended(ctx, p.Pod.UID, c.ID)
	}
	out := &flushing{w: w, rc: http.NewResponseController(w)}
	var stdout, stderr io.Writer = out, out
	switch q.Get("stream") {
	case v1.LogStreamStdout:
		stderr = nil
	case v1.LogStreamStderr:
		stdout = nil
	}
	path := filepath.Join(podconfig.LogDir(s.cfg.PodLogs, p.Pod), podconfig.LogPath(c.Name, c.Attempt))
	if opts.Follow {
		out.flush() // a client that follows wants to know at once that it may
	}
	if err := logs.Read(ctx, path, opts, stdout, stderr); err != nil && !out.begun {
		http.Error(w, fmt.Sprintf("failed to read log of container %q: %v", name, err), http.StatusBadRequest)
	}
}

// flushing sends every piece on at once.
type flushing struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func (f *flushing) Write(p []byte) (int, error) {
	f.begun = true
	n, err := f.w.Write(p)
	if err == nil {
		f.flush()
	}
	return n, err
}

func (f *flushing) flush() {
	f.begun = true
	_ = f.rc.Flush() // a connection that is gone shows at the next write
}

// logOptions reads PodLogOptions from a query.
func logOptions(q url.Values, now time.Time) (logs.Options, error) {
	o := logs.Options{Follow: flag(q, "follow"), Timestamps: flag(q, "timestamps")}
	number := func(name string) (*int64, error) {
		if q.Get(name) == "" {
			return nil, nil
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s %q must be a number that is not negative", name, q.Get(name))
		}
		return &n, nil
	}
	var err error
	if o.Tail, err = number("tailLines"); err != nil {
		return o, err
	}
	if o.Limit, err = number("limitBytes"); err != nil {
		return o, err
	}
	seconds, err := number("sinceSeconds")
	if err != nil {
		return o, err
	}
	if seconds != nil {
		o.Since = now.Add(-time.Duration(*seconds) * time.Second)
	}
	if s := q.Get("sinceTime"); s != "" {
		if o.Since, err = time.Parse(time.RFC3339, s); err != nil {
			return o, fmt.Errorf("sinceTime %q is not an RFC 3339 time", s)
		}
	}
	return o, nil
}

// whoseLog finds the instance whose log is asked for: the newest that ran, or with
// previous the one before it.
func whoseLog(p podworker.Snapshot, name string, previous bool) (podplan.Container, error) {
	var newest, before *podplan.Container
	for i := range p.Input.Containers {
		c := &p.Input.Containers[i]
		if c.Name != name {
			continue
		}
		switch {
		case newest == nil || c.Attempt > newest.Attempt:
			before, newest = newest, c
		case before == nil || c.Attempt > before.Attempt:
			before = c
		}
	}
	waits := podplan.WaitingReason(&p.Status, name)
	if newest != nil && newest.State == podplan.Exited && previous && waits != "" {
		before = newest // what waits to be started is the one after it
	}
	if previous {
		if before == nil {
			return podplan.Container{}, fmt.Errorf("previous terminated container %q in pod %q not found", name, p.Pod.Name)
		}
		return *before, nil
	}
	if newest != nil && newest.State == podplan.Created && before != nil {
		newest = before
	}
	if newest != nil && newest.State != podplan.Created {
		return *newest, nil
	}
	switch waits {
	case podplan.ReasonErrImagePull:
		waits = "image can't be pulled"
	case podplan.ReasonImagePullBackOff:
		waits = "trying and failing to pull image"
	case "":
		return podplan.Container{}, fmt.Errorf("container %q in pod %q is not available", name, p.Pod.Name)
	}
	return podplan.Container{}, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.Pod.Name, waits)
}

// ended returns a channel that is closed once the instance does not run any more.
func (s *Server) ended(ctx context.Context, uid types.UID, id string) <-chan struct{} {
	ch := make(chan struct{})
	go func() {
		for {
			p, ok := s.pods.Get(uid)
			if !ok || !lives(p, id) {
				close(ch)
				return
			}
			select {
			case <-p.Superseded:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch
}

func lives(p podworker.Snapshot, id string) bool {
	for i := range p.Input.Containers {
		if c := &p.Input.Containers[i]; c.ID == id {
			return c.Live()
		}
	}
	return false
}
