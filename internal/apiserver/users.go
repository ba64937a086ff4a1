package apiserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// loopbackUsers holds the components of this process, each with a token that exists only in memory
// and is used for the requests that need a real connection.
type loopbackUsers struct {
	mu     sync.RWMutex
	tokens map[[sha256.Size]byte]user.Info // by hash, so that the time of a look-up reveals nothing
}

func newLoopbackUsers() *loopbackUsers {
	return &loopbackUsers{tokens: map[[sha256.Size]byte]user.Info{}}
}

func (l *loopbackUsers) add(name string, groups []string) (user.Info, string) {
	info := &user.DefaultInfo{Name: name, Groups: slices.Clone(groups)}
	if !slices.Contains(info.Groups, user.AllAuthenticated) {
		info.Groups = append(info.Groups, user.AllAuthenticated)
	}
	token := "loopback-" + rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens[sha256.Sum256([]byte(token))] = info
	return info, token
}

// AuthenticateToken implements authenticator.Token.
func (l *loopbackUsers) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	info, ok := l.tokens[sha256.Sum256([]byte(token))]
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: info}, true, nil
}

// inProcessAuthenticator authenticates requests that never left the process.
var inProcessAuthenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
	info, ok := inProcessUserFrom(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: info}, true, nil
})
