// Package loopback lets components of the process reach its API server without a network. Each has a
// user name of its own, and is authenticated, authorized and admitted like any other client.
package loopback

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

// Clients makes the configurations of clients, and recognizes their requests. Each client also has a
// token that exists only in memory, for the requests that need a real connection.
type Clients struct {
	addr   string
	caFile string

	handler atomic.Pointer[http.Handler]
	own     func() *rest.Config

	mu     sync.RWMutex
	tokens map[[sha256.Size]byte]user.Info // by hash, so that the time of a look-up reveals nothing
}

// New returns Clients of the server at addr, a host and port of this machine, whose certificate those in
// caFile verify. Requests fail before Serve is called.
func New(addr, caFile string) *Clients {
	c := &Clients{addr: addr, caFile: caFile, tokens: map[[sha256.Size]byte]user.Info{}}
	c.own = sync.OnceValue(func() *rest.Config {
		cfg := c.Config(user.APIServerUser, user.SystemPrivilegedGroup)
		cfg.WarningHandler = rest.NoWarnings{}
		return cfg
	})
	return c
}

// Serve sets the handler of all requests.
func (c *Clients) Serve(handler http.Handler) { c.handler.Store(&handler) }

// Addr returns the host and port of the server.
func (c *Clients) Addr() string { return c.addr }

// Config returns the configuration of a client that is authenticated as name with groups (and
// system:authenticated). Requests do not touch the network, except those that upgrade the
// connection, which go over TLS to the server's own port.
func (c *Clients) Config(name string, groups ...string) *rest.Config {
	info, token := c.add(name, groups)
	return &rest.Config{
		Host:        "https://" + c.addr,
		BearerToken: token,
		QPS:         -1,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: "localhost",
			CAFile:     c.caFile,
		},
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &transport{clients: c, user: info, next: next}
		},
	}
}

// Own returns the configuration of the server's client of itself, which may do everything. It
// ignores warnings: what the server maintains includes what is deprecated.
func (c *Clients) Own() *rest.Config { return rest.CopyConfig(c.own()) }

func (c *Clients) add(name string, groups []string) (user.Info, string) {
	info := &user.DefaultInfo{Name: name, Groups: slices.Clone(groups)}
	if !slices.Contains(info.Groups, user.AllAuthenticated) {
		info.Groups = append(info.Groups, user.AllAuthenticated)
	}
	token := "loopback-" + rand.Text()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[sha256.Sum256([]byte(token))] = info
	return info, token
}

// AuthenticateToken implements authenticator.Token.
func (c *Clients) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	info, ok := c.tokens[sha256.Sum256([]byte(token))]
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: info}, true, nil
}

// AuthenticateRequest implements authenticator.Request: it recognizes requests that never left the
// process.
func (c *Clients) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	info, ok := userFrom(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: info}, true, nil
}

var (
	_ authenticator.Token   = (*Clients)(nil)
	_ authenticator.Request = (*Clients)(nil)
)
