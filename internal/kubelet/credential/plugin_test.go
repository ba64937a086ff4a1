package credential

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func TestMatches(t *testing.T) {
	for pattern, images := range map[string]map[string]bool{
		"registry.io":         {"registry.io/a": true, "registry.io/a/b": true, "eu.registry.io/a": false, "registry.io:5000/a": false},
		"*.registry.io":       {"eu.registry.io/a": true, "registry.io/a": false, "a.eu.registry.io/a": false},
		"registry.io:5000":    {"registry.io:5000/a": true, "registry.io/a": false},
		"registry.io/team":    {"registry.io/team/a": true, "registry.io/other": false},
		"*.dkr.*.example.com": {"1.dkr.eu.example.com/a": true, "1.ecr.eu.example.com/a": false},
		"us-*.example.com":    {"us-east.example.com/a": true, "eu-west.example.com/a": false},
		"registry.io/a*":      {"registry.io/ab": false},
	} {
		for image, want := range images {
			if got := Matches(pattern, image); got != want {
				t.Errorf("%s, %s: %v", pattern, image, got)
			}
		}
	}
}

// provider returns a provider that caches for a minute by default.
func provider() kubeletv1.CredentialProvider {
	return kubeletv1.CredentialProvider{
		Name: "p", MatchImages: []string{"*.registry.io"}, APIVersion: tokenAPI, DefaultCacheDuration: &metav1.Duration{Duration: time.Minute},
	}
}

// counted returns a runner that responds with the number of the run as password.
func counted(runs *atomic.Int32, of providerv1.PluginCacheKeyType, d *metav1.Duration) runner {
	return func(_ context.Context, req providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
		time.Sleep(time.Second)
		runs.Add(1)
		return &providerv1.CredentialProviderResponse{CacheKeyType: of, CacheDuration: d, Auth: map[string]providerv1.AuthConfig{
			"*.registry.io": {Username: "u", Password: req.Image}, "other.io": {Username: "x"},
		}}, nil
	}
}

func TestAnswersAreCachedAsThePluginSays(t *testing.T) {
	for _, tc := range []struct {
		of     providerv1.PluginCacheKeyType
		cache  *metav1.Duration
		images []string
		wait   time.Duration
		runs   int32
	}{
		{of: providerv1.ImagePluginCacheKeyType, images: []string{"a.registry.io/x", "a.registry.io/x", "a.registry.io/y"}, runs: 2},
		{of: providerv1.RegistryPluginCacheKeyType, images: []string{"a.registry.io/x", "a.registry.io/y", "b.registry.io/x"}, runs: 2},
		{of: providerv1.GlobalPluginCacheKeyType, images: []string{"a.registry.io/x", "b.registry.io/y"}, runs: 1},
		{of: providerv1.GlobalPluginCacheKeyType, images: []string{"a.registry.io/x", "a.registry.io/x"}, wait: 2 * time.Minute, runs: 2},
		{of: providerv1.GlobalPluginCacheKeyType, cache: &metav1.Duration{}, images: []string{"a.registry.io/x", "a.registry.io/x"}, runs: 2},
		{of: providerv1.GlobalPluginCacheKeyType, cache: &metav1.Duration{Duration: time.Hour}, images: []string{"a.registry.io/x", "a.registry.io/x"}, wait: 2 * time.Minute, runs: 1},
		{of: providerv1.GlobalPluginCacheKeyType, images: []string{"elsewhere.io/x"}, runs: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var runs atomic.Int32
			ps := &Plugins{list: []*plugin{newPlugin(provider(), counted(&runs, tc.of, tc.cache))}}
			for _, image := range tc.images {
				got := ps.For(t.Context(), &v1.Pod{}, image)
				if tc.runs > 0 && (len(got) != 1 || got[0].Username != "u" || got[0].Account != nil) {
					t.Errorf("%+v: %+v", tc, got)
				}
				time.Sleep(tc.wait)
			}
			if n := runs.Load(); n != tc.runs {
				t.Errorf("%+v: %d runs", tc, n)
			}
		})
	}
}

func TestManyAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		ps := &Plugins{list: []*plugin{newPlugin(provider(), counted(&runs, providerv1.ImagePluginCacheKeyType, nil))}}
		gone, cancel := context.WithCancel(t.Context())
		first := make(chan int)
		go func() { first <- len(ps.For(gone, &v1.Pod{}, "a.registry.io/x")) }()
		synctest.Wait()
		second := make(chan int)
		go func() { second <- len(ps.For(t.Context(), &v1.Pod{}, "a.registry.io/x")) }()
		synctest.Wait()
		cancel() // the pod that asked first is deleted
		if a, b := <-first, <-second; a != 0 || b != 1 || runs.Load() != 1 {
			t.Errorf("the first got %d, the second %d, in %d runs", a, b, runs.Load())
		}
	})
}

type fakeAccounts struct{ annotations map[string]string }

func (f fakeAccounts) ServiceAccount(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	if name == "missing" {
		return nil, errors.New("not found")
	}
	return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid", Annotations: f.annotations}}, nil
}

func (f fakeAccounts) Token(_ context.Context, pod *v1.Pod, a *v1.ServiceAccount, audience string) (string, error) {
	return "token of " + a.Name + " for " + audience + " in " + pod.Name, nil
}

func TestServiceAccounts(t *testing.T) {
	cfg := provider()
	cfg.TokenAttributes = &kubeletv1.ServiceAccountTokenAttributes{
		ServiceAccountTokenAudience: "aud", RequireServiceAccount: new(true), CacheType: kubeletv1.ServiceAccountServiceAccountTokenCacheType,
		RequiredServiceAccountAnnotationKeys: []string{"role"}, OptionalServiceAccountAnnotationKeys: []string{"zone"},
	}
	pod := func(name, account string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1.PodSpec{ServiceAccountName: account}}
	}
	var asked []providerv1.CredentialProviderRequest
	echo := false
	run := func(_ context.Context, req providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
		asked = append(asked, req)
		password := "p"
		if echo {
			password = req.ServiceAccountToken
		}
		return &providerv1.CredentialProviderResponse{CacheKeyType: providerv1.ImagePluginCacheKeyType, Auth: map[string]providerv1.AuthConfig{"a.registry.io": {Password: password}}}, nil
	}
	ps := &Plugins{accounts: fakeAccounts{map[string]string{"role": "r", "other": "o"}}, list: []*plugin{newPlugin(cfg, run)}}
	for _, tc := range []struct {
		pod  *v1.Pod
		want int // credentials
		runs int // so far
	}{
		{pod("a", "robot"), 1, 1}, {pod("b", "robot"), 1, 1}, {pod("c", "another"), 1, 2}, {pod("d", ""), 0, 2}, {pod("e", "missing"), 0, 2},
	} {
		got := ps.For(t.Context(), tc.pod, "a.registry.io/x")
		if len(got) != tc.want || len(asked) != tc.runs || tc.want > 0 && got[0].Account.Name != tc.pod.Spec.ServiceAccountName {
			t.Errorf("pod %s: %+v, %d runs", tc.pod.Name, got, len(asked))
		}
	}
	if r := asked[0]; r.ServiceAccountToken != "token of robot for aud in a" || len(r.ServiceAccountAnnotations) != 1 || r.ServiceAccountAnnotations["role"] != "r" {
		t.Errorf("asked %+v", r)
	}
	echo = true
	if got := ps.For(t.Context(), pod("f", "echo"), "a.registry.io/x"); len(got) != 0 {
		t.Errorf("the token itself would be cached for others: %+v", got)
	}
	ps.accounts = fakeAccounts{}
	if got := ps.For(t.Context(), pod("a", "robot"), "a.registry.io/y"); len(got) != 0 || len(asked) != 3 {
		t.Errorf("without the required annotation: %+v", got)
	}
}

const config = `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  matchImages: ["*.registry.io"]
  defaultCacheDuration: 1m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [--flag]
  env: [{name: WHO, value: me}]
`

const script = `#!/bin/sh
in=$(cat)
case "$in" in *'"image":"a.registry.io/fails"'*) echo oops >&2; exit 3;; esac
case "$in" in *'"image":"a.registry.io/odd"'*) echo '{"password":"secret'; exit;; esac
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"a.registry.io":{"username":"'$WHO$1'","password":"p"}}}'
`

func TestExecutable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plugin"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "c.yaml"), dir} {
		ps, err := Load(path, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := ps.For(t.Context(), &v1.Pod{}, "a.registry.io/x"); len(got) != 1 || got[0].Username != "me--flag" || got[0].Password != "p" {
			t.Errorf("%+v", got)
		}
		for image, want := range map[string]string{"a.registry.io/fails": "oops", "a.registry.io/odd": "not valid JSON"} {
			_, err := ps.list[0].provide(t.Context(), nil, &v1.Pod{}, image)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", image, err)
			}
		}
	}
	if _, err := Load(filepath.Join(dir, "c.yaml"), t.TempDir(), nil); err == nil {
		t.Error("a plugin that is not there was taken")
	}
}

const tokenAttributes = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, "

// TestKeysOfAnswers: they are written as in Docker's configurations, and the most specific one
// counts first.
func TestKeysOfAnswers(t *testing.T) {
	auth := map[string]providerv1.AuthConfig{}
	for _, key := range []string{
		"https://index.docker.io/v1/", "docker.io/library", "https://a.registry.io/v2/team", "a.registry.io", "*.registry.io", "http://b.registry.io", "a.registry.io/other",
	} {
		auth[key] = providerv1.AuthConfig{Username: key}
	}
	cfg := provider()
	cfg.MatchImages = []string{"*.*", "*.*.*"}
	ps := &Plugins{list: []*plugin{newPlugin(cfg, func(context.Context, providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
		return &providerv1.CredentialProviderResponse{CacheKeyType: providerv1.GlobalPluginCacheKeyType, Auth: auth}, nil
	})}}
	for image, want := range map[string][]string{
		"docker.io/library/busybox": {"https://index.docker.io/v1/", "docker.io/library"},
		"a.registry.io/team/x":      {"https://a.registry.io/v2/team", "a.registry.io", "*.registry.io"},
		"b.registry.io/x":           {"http://b.registry.io", "*.registry.io"},
	} {
		var got []string
		for _, c := range ps.For(t.Context(), &v1.Pod{}, image) {
			got = append(got, c.Username)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", image, got)
		}
	}
}

// TestAPluginThatHangsIsEnded, even if a child of its own keeps its output open.
func TestAPluginThatHangsIsEnded(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nsleep 30 &\necho $! > $PIDFILE\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "pid")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := provider()
	cfg.Env = []kubeletv1.ExecEnvVar{{Name: "PIDFILE", Value: fifo}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := executable(bin, cfg)(ctx, providerv1.CredentialProviderRequest{})
		done <- err
	}()
	data, err := os.ReadFile(fifo) // once it runs
	child, perr := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || perr != nil {
		t.Fatalf("%q: %v, %v", data, err, perr)
	}
	defer func() {
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			t.Errorf("the plugin's child: %v", err)
		}
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for want, change := range map[string][2]string{
		"not unique":              {"- name: plugin", "- {name: plugin, matchImages: [a], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n- name: plugin"},
		"without '/'":             {"name: plugin", "name: a/b"},
		"must be one of":          {"credentialprovider.kubelet.k8s.io/v1", "v1"},
		"matchImages":             {`["*.registry.io"]`, "[]"},
		"defaultCacheDuration":    {"1m", "-1m"},
		"want CredentialProvider": {"kind: CredentialProviderConfig", "kind: Pod"},
		"unknown field":           {"args:", "arguments:"},
		"v1beta1":                 {"kubelet.config.k8s.io/v1\n", "kubelet.config.k8s.io/v2\n"},
		"\"a b\": name part":      {"args:", tokenAttributes + "requiredServiceAccountAnnotationKeys: [a b]}\n  args:"},
		"listed twice":            {"args:", tokenAttributes + "optionalServiceAccountAnnotationKeys: [a, a]}\n  args:"},
		"both required and":       {"args:", tokenAttributes + "optionalServiceAccountAnnotationKeys: [a], requiredServiceAccountAnnotationKeys: [a]}\n  args:"},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(strings.Replace(config, change[0], change[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readConfig(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzMatches(f *testing.F) {
	f.Add("*.registry.io:5000/a", "a.registry.io:5000/a/b")
	f.Add("[", "x/y")
	f.Add("https://index.docker.io/v1/", "docker.io/library/x")
	f.Fuzz(func(_ *testing.T, pattern, image string) { Matches(location(pattern), image) })
}
