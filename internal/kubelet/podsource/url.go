package podsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	urlTimeout = 10 * time.Second
	// loudFailures is how many failures in a row are logged at a level that everybody sees.
	loudFailures = 4
)

// URL polls a URL for static pods: a Pod, or a PodList. A server cannot announce that they changed,
// so it is asked repeatedly. set gets all pods that exist; while the server does not answer, or
// answers with something else, its last answer stands.
func URL(ctx context.Context, url string, header http.Header, node string, every time.Duration, set func([]*v1.Pod)) error {
	u := &urlSource{url: url, header: header, node: node, client: &http.Client{Timeout: urlTimeout}}
	defer u.client.CloseIdleConnections()
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		err := u.look(ctx, set)
		switch log := klog.FromContext(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if failures > 0 {
				log.Info("Reading static pods works again", "url", url)
			}
			failures = 0
		default:
			if failures++; failures <= loudFailures {
				log.Error(err, "Cannot read static pods", "url", url)
			} else {
				log.V(4).Info("Cannot read static pods", "url", url, "err", err)
			}
		}
		timer.Reset(every)
	}
}

type urlSource struct {
	url, node string
	header    http.Header
	client    *http.Client
	last      []byte
}

// look asks once, and hands over the pods if they differ from before.
func (u *urlSource) look(ctx context.Context, set func([]*v1.Pod)) error {
	data, err := u.get(ctx)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		u.last = nil
		set(nil)
		return fmt.Errorf("zero-length data received from %v", u.url)
	}
	if bytes.Equal(data, u.last) {
		return nil
	}
	pods, err := u.decode(data)
	if err != nil {
		return fmt.Errorf("%s: %w", u.url, err)
	}
	u.last = data
	set(pods)
	return nil
}

func (u *urlSource) get(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range u.header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%v: %v", u.url, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err == nil && len(data) > maxManifest {
		err = fmt.Errorf("%v: more than %d bytes", u.url, maxManifest)
	}
	return data, err
}

// decode parses a Pod, or all pods of a PodList. If one cannot be parsed, it returns an error
// rather than run half of a list.
func (u *urlSource) decode(data []byte) ([]*v1.Pod, error) {
	obj, err := decode(data)
	if err != nil {
		return nil, err
	}
	var items []v1.Pod
	switch o := obj.(type) {
	case *v1.Pod:
		items = []v1.Pod{*o}
	case *v1.PodList:
		items = o.Items
	default:
		return nil, fmt.Errorf("neither a Pod nor a PodList: %T", obj)
	}
	now, named := time.Now(), map[types.NamespacedName]bool{}
	var pods []*v1.Pod
	var errs []error
	for i := range items {
		pod, err := makeStatic(&items[i], u.node, "http:"+u.url, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %d: %w", i, err))
			continue
		}
		if key := (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}); !named[key] { // of two, the first
			named[key] = true
			pods = append(pods, pod)
		}
	}
	return pods, errors.Join(errs...)
}
