package localvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
)

// answer is what a node says of its disk.
type answer struct {
	Free        int64       `json:"free"` // bytes
	Directories []Directory `json:"directories,omitempty"`
	// Data is there where nothing was expected.
	Data bool `json:"data,omitempty"`
}

// ServeHTTP serves the disk to the server. Errors are Status objects.
func (l *Local) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got, err := l.serve(r)
	code, doc := http.StatusOK, any(got)
	if err != nil {
		status := refusalOf(err)
		code, doc = int(status.Code), status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot answer the server", "err", err)
	}
}

func (l *Local) serve(r *http.Request) (got answer, err error) {
	ctx, query := r.Context(), r.URL.Query()
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, cluster.VolumesPath), "/")
	if name == "" {
		if r.Method != http.MethodGet {
			return got, apierrors.NewBadRequest("name a volume: " + cluster.VolumesPath + "/NAME")
		}
		if got.Free, err = l.Free(ctx); err != nil {
			return got, err
		}
		got.Directories, err = l.List(ctx)
		return got, err
	}
	if err := valid(name); err != nil {
		return got, apierrors.NewBadRequest(err.Error())
	}
	switch r.Method {
	case http.MethodPut, http.MethodPost:
		size, err := strconv.ParseInt(query.Get("size"), 10, 64)
		if err != nil || size < 0 {
			return got, apierrors.NewBadRequest(fmt.Sprintf("size %q is not a number of bytes", query.Get("size")))
		}
		if r.Method == http.MethodPut {
			return got, l.Make(ctx, name, size)
		}
		return got, l.Limit(ctx, name, size)
	case http.MethodDelete:
		if query.Has("version") {
			got.Data, err = l.Tidy(ctx, Directory{name, query.Get("version")})
			return got, err
		}
		return got, l.Remove(ctx, name)
	}
	return got, apierrors.NewBadRequest(r.Method + " means nothing here")
}

// refusalOf returns an error as the server gets it.
func refusalOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		s := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}}
		switch {
		case errors.Is(err, ErrInUse):
			s.ErrStatus.Code, s.ErrStatus.Reason = http.StatusConflict, metav1.StatusReasonConflict
		case errors.Is(err, ErrUnfinished):
			s.ErrStatus.Code, s.ErrStatus.Reason = http.StatusGatewayTimeout, metav1.StatusReasonTimeout
		default:
			s.ErrStatus.Code, s.ErrStatus.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		}
		known = s
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

// Remote is the disk of another machine.
type Remote struct {
	// Node whose kubelet serves it.
	Node string
	// Folder that has the volumes' directories there.
	Folder string
	// Client of an API server whose URL is Server, through which the kubelet is asked.
	Client *http.Client
	Server string
}

// Root implements Disk.
func (r Remote) Root() string { return r.Folder }

// mostAnswer is how much, in bytes, a node may say: some ten thousand directories.
const mostAnswer = 2 << 20

func (r Remote) ask(ctx context.Context, method, name string, query url.Values) (got answer, err error) {
	where := strings.TrimSuffix(r.Server, "/") + "/api/v1/nodes/" + url.PathEscape(r.Node) + "/proxy" + cluster.VolumesPath
	if name != "" {
		where += "/" + url.PathEscape(name)
	}
	req, err := http.NewRequestWithContext(ctx, method, where+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return got, err
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		return got, fmt.Errorf("ask node %s: %w", r.Node, err)
	}
	defer func() { _ = resp.Body.Close() }()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return got, fmt.Errorf("ask node %s: %w", r.Node, err)
	}
	if resp.StatusCode != http.StatusOK {
		return got, r.errorOf(resp, doc)
	}
	if err := json.Unmarshal(doc, &got); err != nil {
		return got, fmt.Errorf("node %s: %w", r.Node, err)
	}
	return got, nil
}

// errorOf reads what refusalOf has written; something else comes from somebody in between.
func (r Remote) errorOf(resp *http.Response, doc []byte) error {
	var status metav1.Status
	if json.Unmarshal(doc, &status) != nil || status.Message == "" {
		status.Message = resp.Status
	}
	rest, used := strings.CutPrefix(status.Message, ErrInUse.Error())
	switch {
	case used && status.Reason == metav1.StatusReasonConflict:
		return fmt.Errorf("%w%s", ErrInUse, rest)
	case status.Message == ErrUnfinished.Error() && status.Reason == metav1.StatusReasonTimeout:
		return ErrUnfinished
	}
	return fmt.Errorf("node %s: %s", r.Node, status.Message)
}

// askPatience is how long a node may take for what is soon done.
const askPatience = removePatience / 2

func (r Remote) soon(ctx context.Context, method, name string, query url.Values) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	return r.ask(ctx, method, name, query)
}

// Free implements Disk.
func (r Remote) Free(ctx context.Context) (int64, error) {
	got, err := r.soon(ctx, http.MethodGet, "", nil)
	return max(got.Free, 0), err
}

// List implements Disk.
func (r Remote) List(ctx context.Context) ([]Directory, error) {
	got, err := r.soon(ctx, http.MethodGet, "", nil)
	return got.Directories, err
}

// Make implements Disk.
func (r Remote) Make(ctx context.Context, name string, size int64) error {
	_, err := r.soon(ctx, http.MethodPut, name, inBytes(size))
	return err
}

// Limit implements Disk.
func (r Remote) Limit(ctx context.Context, name string, size int64) error {
	_, err := r.soon(ctx, http.MethodPost, name, inBytes(size))
	return err
}

// Remove implements Disk.
func (r Remote) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*removePatience)
	defer cancel()
	_, err := r.ask(ctx, http.MethodDelete, name, nil)
	return err
}

// Tidy implements Disk.
func (r Remote) Tidy(ctx context.Context, d Directory) (bool, error) {
	got, err := r.soon(ctx, http.MethodDelete, d.Name, url.Values{"version": {d.Version}})
	return got.Data, err
}

func inBytes(size int64) url.Values { return url.Values{"size": {strconv.FormatInt(size, 10)}} }
