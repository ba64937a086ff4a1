package credential

import (
	"net"
	"net/url"
	"path"
	"strings"
)

func parseURL(s string) (*url.URL, error) {
	u, err := url.Parse("https://" + s)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(u.Hostname(), ".") {
		if _, err := path.Match(part, ""); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// Matches reports whether a pattern matches an image: each part of the host name as a glob, the
// same port, and the path as a prefix.
func Matches(pattern, image string) bool {
	p, err := parseURL(pattern)
	if err != nil {
		return false
	}
	i, err := url.Parse("https://" + image)
	if err != nil || p.Port() != i.Port() || !strings.HasPrefix(i.Path, p.Path) {
		return false
	}
	globs, parts := strings.Split(host(p), "."), strings.Split(host(i), ".")
	if len(globs) != len(parts) {
		return false
	}
	for n := range globs {
		if ok, err := path.Match(globs[n], parts[n]); err != nil || !ok {
			return false
		}
	}
	return true
}

// location returns what the key of a credential refers to: Docker configurations write
// https://index.docker.io/v1/ for all of Docker Hub.
func location(key string) string {
	host, path, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
	if host == "index.docker.io" {
		host = "docker.io"
	}
	path = strings.TrimPrefix(strings.TrimPrefix(path, "v1/"), "v2/")
	if path == "" {
		return host
	}
	return host + "/" + path
}

func host(u *url.URL) string {
	if h, _, err := net.SplitHostPort(u.Host); err == nil {
		return h
	}
	return u.Host
}

// registry returns the part of an image's name before the first slash.
func registry(image string) string {
	r, _, _ := strings.Cut(image, "/")
	return r
}
