package image_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"wherry.dev/internal/image"
)

const (
	user, password = "ann", "s3cret"
	accessToken    = "access-token"
	identityToken  = "identity-token"
)

// wantBasic demands a user name and password.
func wantBasic(s *server) {
	s.On(func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	})
}

// wantToken demands a token, as Docker Hub does; anonymous means that everybody is given one.
func wantToken(s *server, anonymous bool) {
	s.On(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			giveToken(w, r, anonymous)
			return true
		}
		if r.Header.Get("Authorization") == "Bearer "+accessToken {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="test",scope="repository:private:pull"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	})
}

func giveToken(w http.ResponseWriter, r *http.Request, anonymous bool) {
	u, p, basic := r.BasicAuth()
	ok := anonymous && !basic || u == user && p == password
	if r.Method == http.MethodPost {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f := r.PostForm
		ok = f.Get("grant_type") == "refresh_token" && f.Get("refresh_token") == identityToken ||
			f.Get("grant_type") == "password" && f.Get("username") == user && f.Get("password") == password
	}
	if !ok {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": accessToken, "access_token": accessToken, "expires_in": 60})
}

func TestCredentials(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	anybody := func(s *server) { wantToken(s, true) }
	token := func(s *server) { wantToken(s, false) }
	for name, c := range map[string]struct {
		demand func(*server)
		auth   image.Auth
		server string // for Auth.ServerAddress; HOST stands for the registry's
		fails  string
	}{
		"basic":                   {demand: wantBasic, auth: image.Auth{Username: user, Password: password}},
		"basic, encoded":          {demand: wantBasic, auth: image.Auth{Auth: encoded}},
		"basic, named server":     {demand: wantBasic, auth: image.Auth{Username: user, Password: password}, server: "https://HOST/v1/"},
		"basic, another server":   {demand: wantBasic, auth: image.Auth{Username: user, Password: password}, server: "https://elsewhere.example", fails: "pull access denied"},
		"basic, none":             {demand: wantBasic, fails: "pull access denied"},
		"basic, wrong":            {demand: wantBasic, auth: image.Auth{Username: user, Password: "x"}, fails: "401 Unauthorized"},
		"token, anonymous":        {demand: anybody},
		"token, password":         {demand: token, auth: image.Auth{Username: user, Password: password}},
		"token, identity token":   {demand: token, auth: image.Auth{IdentityToken: identityToken}},
		"token, registry token":   {demand: token, auth: image.Auth{RegistryToken: accessToken}},
		"token, none":             {demand: token, fails: "failed to authorize"},
		"token, wrong":            {demand: token, auth: image.Auth{Username: user, Password: "x"}, fails: "failed to authorize"},
		"token, bad registry one": {demand: token, auth: image.Auth{RegistryToken: "x"}, fails: "rejected the token"},
		"not base64":              {demand: wantBasic, auth: image.Auth{Auth: "%"}, fails: "not base64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, s := plain(t), open(t, t.TempDir())
			ref := srv.Push(t, "private:1", twoLayers(t))
			c.demand(srv)
			c.auth.ServerAddress = strings.ReplaceAll(c.server, "HOST", srv.Host)
			_, err := s.Pull(t.Context(), ref, image.PullOptions{Auth: c.auth})
			switch {
			case c.fails == "" && err != nil:
				t.Error(err)
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("got %v", err)
			case err != nil && strings.Contains(err.Error(), password):
				t.Errorf("the error tells the password: %v", err)
			}
			if err != nil {
				checkEmpty(t, s)
			}
		})
	}
}
