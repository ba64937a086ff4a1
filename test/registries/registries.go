// Package registries stands in for image registries in tests: one registry on loopback with a
// certificate for all of their names, and a proxy that redirects each of them there. A program
// finds it through its environment, unchanged, and nothing leaves the machine.
package registries

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wherry.dev/internal/pki"
)

// Registries serve until they are closed.
type Registries struct {
	plain  *http.Server // where the images are put
	secure *http.Server
	proxy  *http.Server

	addr string // of the plain registry
	url  string // of the proxy
	ca   string // file
}

// Start serves the images, by repository and tag, under all of the hosts; it makes certificates
// below dir.
func Start(ctx context.Context, dir string, hosts []string, images map[string]v1.Image) (*Registries, error) {
	ca, err := pki.LoadOrCreateCA(dir, "ca", "test registries", time.Now())
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Issue(dir, "registry", pki.Leaf{CommonName: hosts[0], DNSNames: hosts, Server: true}, time.Now())
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r := &Registries{ca: filepath.Join(dir, "ca.crt")}
	plain, err := serve(ctx, &r.plain, store, nil)
	if err != nil {
		return nil, err
	}
	secure, err := serve(ctx, &r.secure, store, &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	proxy, err := serve(ctx, &r.proxy, tunnelTo(secure), nil)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.addr, r.url = plain, "http://"+proxy
	if err := r.fill(ctx, images); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func serve(ctx context.Context, slot **http.Server, h http.Handler, secure *tls.Config) (addr string, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr = l.Addr().String()
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	// A client that disconnects is not worth a log line.
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	*slot = srv
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Printf("registry: %v", err)
		}
	}()
	return addr, nil
}

// tunnelTo answers CONNECT with a connection to addr, whatever host the request names.
func tunnelTo(addr string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
			return
		}
		up, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", addr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = up.Close() }()
		down, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = down.Close() }()
		if _, err := io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			return
		}
		ended := make(chan struct{}, 2)
		pump := func(dst io.Writer, src io.Reader) {
			_, _ = io.Copy(dst, src) // either side may close it
			ended <- struct{}{}
		}
		go pump(up, buffered)
		go pump(down, up)
		<-ended
		_, _ = up.Close(), down.Close()
		<-ended
	})
}

func (r *Registries) fill(ctx context.Context, images map[string]v1.Image) error {
	for n, img := range images {
		if err := r.Add(ctx, n, img); err != nil {
			return err
		}
	}
	return nil
}

// Add serves one more image, by repository and tag.
func (r *Registries) Add(ctx context.Context, n string, img v1.Image) error {
	ref, err := name.ParseReference(r.addr + "/" + n)
	if err != nil {
		return err
	}
	if err := remote.Write(ref, img, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("fill the registry with %s: %w", n, err)
	}
	return nil
}

// Also lets programs of another network find the registries by the same environment: listen, which runs there, is given the
// proxy's address.
func (r *Registries) Also(listen func(addr string) (net.Listener, error)) error {
	l, err := listen(strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		return err
	}
	go func() {
		if err := r.proxy.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Printf("registry: %v", err)
		}
	}()
	return nil
}

// Env returns the environment for a program that is to find the registries.
func (r *Registries) Env(env []string) []string {
	return append(WithoutProxies(env), "HTTPS_PROXY="+r.url, "SSL_CERT_FILE="+r.ca, "NO_PROXY=127.0.0.0/8,10.0.0.0/8,192.168.0.0/16,localhost")
}

// WithoutProxies drops variables that would send requests out of the machine.
func WithoutProxies(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(strings.ToLower(v), "=")
		return strings.HasSuffix(name, "_proxy") || name == "ssl_cert_file"
	})
}

// Close stops everything that was started.
func (r *Registries) Close() error {
	var errs []error
	for _, s := range []*http.Server{r.proxy, r.secure, r.plain} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}
