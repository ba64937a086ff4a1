package credential

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	kubeletv1 "k8s.io/kubelet/config/v1"
	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"wherry.dev/internal/kubelet/metrics"
)

// timeout limits one run of a plugin.
const timeout = time.Minute

// Accounts looks up service accounts and gets tokens for them that are bound to a pod.
type Accounts interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error)
}

// Credential is a credential for the images that Pattern matches.
type Credential struct {
	Pattern            string
	Username, Password string
	// Account for which it was issued; nil if every pod of the node may use it.
	Account *v1.ServiceAccount
}

// Plugins are all plugins of a node. They are safe for concurrent use.
type Plugins struct {
	accounts Accounts
	list     []*plugin
}

// For returns the plugins' credentials for an image (its name without tag and digest) that a pod
// needs. If a plugin fails, that is logged: the others may still have one.
func (ps *Plugins) For(ctx context.Context, pod *v1.Pod, image string) []Credential {
	if ps == nil {
		return nil
	}
	var out []Credential
	for _, p := range ps.list {
		if !slices.ContainsFunc(p.cfg.MatchImages, func(m string) bool { return Matches(m, image) }) {
			continue
		}
		found, err := p.provide(ctx, ps.accounts, pod, image)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to get image pull credentials from a plugin", "provider", p.cfg.Name, "image", image, "pod", klog.KObj(pod))
			continue
		}
		for _, c := range found {
			if Matches(location(c.Pattern), image) {
				out = append(out, c)
			}
		}
	}
	return out
}

// runner runs a plugin.
type runner func(ctx context.Context, req providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error)

type plugin struct {
	cfg    kubeletv1.CredentialProvider
	run    runner
	flight singleflight.Group

	mu    sync.Mutex
	cache map[string]entry
}

type entry struct {
	auth    map[string]providerv1.AuthConfig
	expires time.Time
}

func newPlugin(cfg kubeletv1.CredentialProvider, run runner) *plugin {
	return &plugin{cfg: cfg, run: run, cache: map[string]entry{}}
}

// request is what a plugin is asked, with what decides who else may use the response.
type request struct {
	providerv1.CredentialProviderRequest
	account *v1.ServiceAccount
	scope   string
}

func (p *plugin) provide(ctx context.Context, accounts Accounts, pod *v1.Pod, image string) ([]Credential, error) {
	req, ok, err := p.request(ctx, accounts, pod, image)
	if err != nil || !ok {
		return nil, err
	}
	auth, cached := p.cached(image, req.scope)
	if !cached {
		if auth, err = p.ask(ctx, req); err != nil {
			return nil, err
		}
	}
	var out []Credential
	for _, pattern := range slices.Backward(slices.Sorted(maps.Keys(auth))) { // of two prefixes, the longer one first
		a := auth[pattern]
		out = append(out, Credential{Pattern: pattern, Username: a.Username, Password: a.Password, Account: req.account})
	}
	return out, nil
}

// request collects what the plugin wants to know. It returns false, so that the plugin is not run,
// for a pod whose service account lacks what the plugin requires.
func (p *plugin) request(ctx context.Context, accounts Accounts, pod *v1.Pod, image string) (request, bool, error) {
	req := request{CredentialProviderRequest: providerv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{Kind: "CredentialProviderRequest", APIVersion: p.cfg.APIVersion}, Image: image,
	}}
	t := p.cfg.TokenAttributes
	if t == nil {
		return req, true, nil
	}
	name := pod.Spec.ServiceAccountName
	if name == "" || accounts == nil {
		return req, !*t.RequireServiceAccount, nil
	}
	account, err := accounts.ServiceAccount(ctx, pod.Namespace, name)
	if err != nil {
		return req, false, fmt.Errorf("service account %s/%s: %w", pod.Namespace, name, err)
	}
	req.ServiceAccountAnnotations = map[string]string{}
	for _, k := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if v, ok := account.Annotations[k]; ok {
			req.ServiceAccountAnnotations[k] = v
		} else if slices.Contains(t.RequiredServiceAccountAnnotationKeys, k) {
			return req, false, nil // its way of declining
		}
	}
	if req.ServiceAccountToken, err = accounts.Token(ctx, pod, account, t.ServiceAccountTokenAudience); err != nil {
		return req, false, fmt.Errorf("token of service account %s/%s: %w", pod.Namespace, name, err)
	}
	req.account = account
	scope := []any{account.Namespace, account.Name, account.UID, req.ServiceAccountAnnotations}
	if t.CacheType == kubeletv1.TokenServiceAccountTokenCacheType {
		scope = append(scope, fmt.Sprintf("%x", sha256.Sum256([]byte(req.ServiceAccountToken))))
	}
	req.scope = key(scope...)
	return req, true, nil
}

// key makes a string from several, such that no other strings give the same one.
func key(parts ...any) string {
	data, err := json.Marshal(parts)
	if err != nil {
		return fmt.Sprint(parts...)
	}
	return string(data)
}

const global = "global"

func (p *plugin) cached(image, scope string) (map[string]providerv1.AuthConfig, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.cache, func(_ string, e entry) bool { return now.After(e.expires) })
	for _, of := range []string{image, registry(image), global} {
		if e, ok := p.cache[key(of, scope)]; ok {
			return e.auth, true
		}
	}
	return nil, false
}

// ask runs the plugin, once for all that ask the same.
func (p *plugin) ask(ctx context.Context, req request) (map[string]providerv1.AuthConfig, error) {
	// What others wait for must not be canceled because the first pod is gone.
	detached := context.WithoutCancel(ctx)
	ch := p.flight.DoChan(key(req.Image, req.ServiceAccountToken, req.ServiceAccountAnnotations), func() (any, error) {
		ctx, cancel := context.WithTimeout(detached, timeout)
		defer cancel()
		return p.run(ctx, req.CredentialProviderRequest)
	})
	var resp *providerv1.CredentialProviderResponse
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case res := <-ch:
		if res.Err != nil {
			return nil, res.Err
		}
		resp = res.Val.(*providerv1.CredentialProviderResponse)
	}
	if t := p.cfg.TokenAttributes; t != nil && req.ServiceAccountToken != "" && t.CacheType != kubeletv1.TokenServiceAccountTokenCacheType {
		for _, a := range resp.Auth {
			if a.Password == req.ServiceAccountToken {
				return nil, errors.New("the plugin returned the service account's token as the password, which is only allowed with cacheType Token")
			}
		}
	}
	return resp.Auth, p.keep(req, resp)
}

func (p *plugin) keep(req request, resp *providerv1.CredentialProviderResponse) error {
	of := ""
	switch resp.CacheKeyType {
	case providerv1.ImagePluginCacheKeyType:
		of = req.Image
	case providerv1.RegistryPluginCacheKeyType:
		of = registry(req.Image)
	case providerv1.GlobalPluginCacheKeyType:
		of = global
	default:
		return fmt.Errorf("the plugin did not return a valid cacheKeyType: %q", resp.CacheKeyType)
	}
	d := p.cfg.DefaultCacheDuration.Duration
	if resp.CacheDuration != nil {
		d = resp.CacheDuration.Duration
	}
	if d > 0 {
		p.mu.Lock()
		p.cache[key(of, req.scope)] = entry{resp.Auth, time.Now().Add(d)}
		p.mu.Unlock()
	}
	return nil
}

// executable runs a plugin's program. Its response is never part of an error: it may contain
// passwords.
func executable(bin string, cfg kubeletv1.CredentialProvider) runner {
	return func(ctx context.Context, req providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
		in, err := json.Marshal(req)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, bin, cfg.Args...)
		cmd.Env = os.Environ()
		for _, e := range cfg.Env {
			cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
		}
		var out, problems bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &problems
		cmd.WaitDelay = time.Second // for children of its own that keep its output open
		began := time.Now()
		err = cmd.Run()
		metrics.PluginDuration.WithLabelValues(cfg.Name).Observe(time.Since(began).Seconds())
		if ctx.Err() != nil {
			err = ctx.Err() // rather than that it was killed
		}
		if err != nil {
			metrics.PluginErrors.WithLabelValues(cfg.Name).Inc()
			return nil, fmt.Errorf("exec plugin %s for image %s: %w: %s", cfg.Name, req.Image, err, strings.TrimSpace(problems.String()))
		}
		var resp providerv1.CredentialProviderResponse
		if err := json.Unmarshal(out.Bytes(), &resp); err != nil {
			return nil, fmt.Errorf("plugin %s: its answer is not valid JSON", cfg.Name)
		}
		if resp.Kind != "CredentialProviderResponse" || resp.APIVersion != cfg.APIVersion {
			return nil, fmt.Errorf("plugin %s: answered with kind %q of %q, want CredentialProviderResponse of %s", cfg.Name, resp.Kind, resp.APIVersion, cfg.APIVersion)
		}
		return &resp, nil
	}
}
