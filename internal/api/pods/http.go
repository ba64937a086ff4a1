package pods

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// HTTPRequest returns the request that a probe or a lifecycle hook makes to a container: at ip, the
// address of its pod, unless the action names another host.
func HTTPRequest(ctx context.Context, get *v1.HTTPGetAction, spec *v1.Container, ip, agent string) (*http.Request, error) {
	port, err := Port(get.Port, spec)
	if err != nil {
		return nil, err
	}
	host := get.Host
	if host == "" {
		host = ip
	}
	u, err := url.Parse(get.Path)
	if err != nil { // a path such as "%" is used literally
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = strings.ToLower(string(get.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
		u.RawPath = ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", agent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	return req, nil
}

const maxRedirects = 10

// StayOnHost is the CheckRedirect of clients that make such requests. It follows redirects on the
// same host; a redirect to another host counts as the answer.
func StayOnHost(next *http.Request, via []*http.Request) error {
	if next.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}
