package hostile

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Lie is a response of a registry that breaks the rules.
type Lie struct {
	Hook Hook
	// Refused is part of the message with which the pull fails; "" means that the pull never ends
	// by itself, because the registry keeps it going.
	Refused string
}

// endless sends bytes until nobody reads them any more.
func endless(w http.ResponseWriter, r *http.Request, first, again string) {
	if r.Method == http.MethodHead { // it has no body
		return
	}
	again = strings.Repeat(again, 64<<10)
	_, err := io.WriteString(w, first)
	for err == nil {
		_, err = io.WriteString(w, again)
	}
}

// Lies returns those of a registry that was given the image demo:1 of one layer. addr is the
// registry's own address.
func Lies(addr string) map[string]Lie {
	isManifest := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }
	on := func(which func(*http.Request) bool, answer http.HandlerFunc) Hook {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if which(r) {
				answer(w, r)
			}
			return which(r)
		}
	}
	stall := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	to := func(url string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, http.StatusTemporaryRedirect) }
	}
	return map[string]Lie{
		"manifest-endless": {on(isManifest, func(w http.ResponseWriter, r *http.Request) {
			manifest(w)
			endless(w, r, "{", `"a":1,`)
		}), "has more than"},
		"manifest-garbage": {on(isManifest, func(w http.ResponseWriter, _ *http.Request) {
			manifest(w)
			_, _ = io.WriteString(w, "\x00garbage")
		}), "invalid character"},
		"manifest-nothing": {on(isManifest, func(w http.ResponseWriter, _ *http.Request) { manifest(w) }), "unexpected end of JSON input"},
		"manifest-stalls":  {on(isManifest, stall), ""},
		"manifest-huge": {on(isManifest, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
			w.Header().Set("Content-Length", "1099511627776")
		}), "1099511627776"},
		"digest-nonsense": {on(isManifest, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Docker-Content-Digest", "sha256:../../../../etc/shadow")
			w.Header().Set("Content-Length", "10")
		}), "not a valid digest"},
		"headers-huge": {on(isManifest, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 8000))
			}
		}), "headers exceeded"},
		"blob-endless": {on(IsBlob, func(w http.ResponseWriter, r *http.Request) { endless(w, r, "", "x") }), "expected size"},
		"blob-cut": {on(IsBlob, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			panic(http.ErrAbortHandler)
		}), "gave up after 5 attempts"},
		"blob-stalls":    {on(IsBlob, stall), ""},
		"blob-garbage":   {on(IsBlob, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "garbage") }), "corrupt"},
		"redirect-loop":  {func(w http.ResponseWriter, r *http.Request) bool { to(r.URL.Path)(w, r); return true }, "redirects"},
		"redirect-file":  {on(IsBlob, to("file:///etc/shadow")), `unsupported protocol scheme "file"`},
		"redirect-local": {on(IsBlob, to("http://127.0.0.1:1/latest/meta-data/")), "connection refused"},
		"unauthorized-for-ever": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" {
				_, _ = io.WriteString(w, `{"token":"x"}`)
				return true
			}
			return unauthorized(w, "http://"+addr+"/token")
		}, "401 Unauthorized"},
		"token-endless": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/x/blobs/token" {
				endless(w, r, `{"token":"`, "x")
				return true
			}
			return unauthorized(w, "http://"+addr+"/v2/x/blobs/token")
		}, "has more than"},
		"token-stalls": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" {
				stall(w, r)
				return true
			}
			return unauthorized(w, "http://"+addr+"/token")
		}, ""},
		"token-file": {func(w http.ResponseWriter, _ *http.Request) bool { return unauthorized(w, "file:///etc/shadow") }, "unsupported protocol scheme"},
		"error-huge": {func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusBadRequest)
			endless(w, r, "", "error ")
			return true
		}, "400 Bad Request"},
		"later-later": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "999999999")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}, ""},
	}
}

func manifest(w http.ResponseWriter) {
	w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
}

func unauthorized(w http.ResponseWriter, realm string) bool {
	w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="test",scope="repository:demo:pull"`)
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

// Honest returns the image behind the lies.
func Honest(t testing.TB) v1.Image {
	t.Helper()
	return AsOCI(ImageOf(t, Zeros(t, 1<<20, compression.GZip)))
}
