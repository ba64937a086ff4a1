package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// reviews is an API server that knows the token "good", and allows everybody what is not denied on
// the node n1.
type reviews struct {
	client kubernetes.Interface
	deny   []string // subresources of nodes

	mu    sync.Mutex
	asked []string // resource and, for access reviews, the user
}

func newReviews(t *testing.T, deny ...string) *reviews {
	t.Helper()
	r := &reviews{deny: deny}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	r.client = client
	return r
}

// count returns how many reviews there were of a user or a resource, or of anything if it is empty.
func (r *reviews) count(of string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.asked {
		if of == "" || a == of {
			n++
		}
	}
	return n
}

func (r *reviews) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var tokens authenticationv1.TokenReview
	var access authorizationv1.SubjectAccessReview
	var answer any = &tokens
	what := path.Base(req.URL.Path)
	if what == "subjectaccessreviews" {
		answer = &access
	}
	if err := json.NewDecoder(req.Body).Decode(answer); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if at := access.Spec.ResourceAttributes; at != nil {
		access.Status.Allowed = at.Resource == "nodes" && at.Name == "n1" && !slices.Contains(r.deny, at.Subresource)
		what = access.Spec.User
	} else {
		tokens.Status.Authenticated = tokens.Spec.Token == "good"
		tokens.Status.User.Username = "user"
	}
	r.mu.Lock()
	r.asked = append(r.asked, what)
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func mustAuth(t *testing.T, cfg AuthConfig) *Auth {
	t.Helper()
	a, err := NewAuth(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
