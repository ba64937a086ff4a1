package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("container")
	q, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), q.code)
		return
	}
	p, ok := s.named(r)
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	if pods.FindContainer(p.Pod, name) == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, p.Pod.Name), http.StatusNotFound)
		return
	}
	c, err := whoseLog(p, name, q.previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if q.Follow {
		q.Ended = s.ended(ctx, p.Pod.UID, c.ID)
	}
	out := &flushing{w: w, rc: http.NewResponseController(w)}
	var stdout, stderr io.Writer = out, out
	switch q.stream {
	case v1.LogStreamStdout:
		stderr = nil
	case v1.LogStreamStderr:
		stdout = nil
	}
	q.ID = c.ID
	path := filepath.Join(criconfig.LogDir(s.cfg.PodLogs, p.Pod), criconfig.LogPath(c.Name, c.Attempt))
	if q.Follow {
		out.flush() // a client that follows needs to know at once that its request is accepted
	}
	if err := logs.Read(ctx, path, q.Options, stdout, stderr); err != nil && !out.begun {
		http.Error(w, fmt.Sprintf("failed to read log of container %q: %v", name, err), http.StatusBadRequest)
	}
}

// flushing sends every piece immediately.
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
	_ = f.rc.Flush() // a broken connection shows at the next write
}

// logRequest has what PodLogOptions say, and the status code of the response if they cannot be
// parsed (400) or make no sense (422).
type logRequest struct {
	logs.Options
	previous bool
	stream   string
	code     int
}

// logOptions parses PodLogOptions from a query.
func logOptions(q url.Values, now time.Time) (logRequest, error) {
	o := logRequest{
		Options: logs.Options{Follow: on(q, "follow"), Timestamps: on(q, "timestamps")}, previous: on(q, "previous"),
		stream: q.Get("stream"), code: http.StatusBadRequest,
	}
	if tail := q.Get("tail"); tail != "" { // the old name of tailLines
		q.Set("tailLines", tail)
		if tail == "all" {
			q.Del("tailLines")
		}
	}
	number := func(name string) (*int64, error) {
		if q.Get(name) == "" {
			return nil, nil
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil {
			return nil, fmt.Errorf(`{"message": "Unable to decode query. %s %s is not a number."}`, name, jsonSafe(q.Get(name)))
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
			return o, fmt.Errorf(`{"message": "Unable to decode query. sinceTime %s is not an RFC 3339 time."}`, jsonSafe(s))
		}
	}
	o.code = http.StatusUnprocessableEntity
	if why := o.invalid(seconds, q.Get("sinceTime") != ""); why != "" {
		return o, fmt.Errorf(`{"message": "Invalid request. %s."}`, why)
	}
	return o, nil
}

// invalid returns what is wrong with the options, or an empty string.
func (o *logRequest) invalid(seconds *int64, sinceTime bool) string {
	switch {
	case o.Tail != nil && *o.Tail < 0:
		return "tailLines must be greater than or equal to 0"
	case o.Limit != nil && *o.Limit < 1:
		return "limitBytes must be greater than 0"
	case seconds != nil && sinceTime:
		return "at most one of sinceTime or sinceSeconds may be specified"
	case seconds != nil && *seconds < 1:
		return "sinceSeconds must be greater than 0"
	case !slices.Contains([]string{"", v1.LogStreamAll, v1.LogStreamStdout, v1.LogStreamStderr}, o.stream):
		return "stream must be All, Stdout or Stderr"
	case o.Tail != nil && (o.stream == v1.LogStreamStdout || o.stream == v1.LogStreamStderr):
		return "tailLines and specific stream are mutually exclusive for now"
	}
	return ""
}

// jsonSafe quotes foreign text for use within a JSON string.
func jsonSafe(s string) string { return strings.ReplaceAll(strconv.Quote(s), `"`, "'") }

// on parses a flag of PodLogOptions: anything but "false" and "0" is true, including an empty
// value.
func on(q url.Values, name string) bool {
	return q.Has(name) && !strings.EqualFold(q.Get(name), "false") && q.Get(name) != "0"
}

// whoseLog returns the instance whose log is requested: the newest that ran or, with previous, the
// one before it.
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
		before = newest // the one waiting to be started comes after it
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

// ended returns a channel that is closed once the instance no longer runs.
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
