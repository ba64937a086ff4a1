// Package credential asks a node's credential provider plugins for registry credentials. Plugins
// are executables that get an image's name on stdin and respond with user names and passwords
// (credentialprovider.kubelet.k8s.io). Responses are cached for as long as the plugin says, and a
// plugin is asked once for what several pods need at the same time.
package credential

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletv1 "k8s.io/kubelet/config/v1"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/safepath"
)

const (
	group    = "credentialprovider.kubelet.k8s.io"
	tokenAPI = group + "/v1"
)

// apiVersions of the protocol; v1 added service accounts, otherwise they are the same.
var apiVersions = []string{tokenAPI, group + "/v1beta1", group + "/v1alpha1"}

// configVersions have the same fields, except that the older ones lack tokenAttributes.
var configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}

// readConfig reads a file, or all files of a directory in the order of their names. It also returns
// a hash of their content.
func readConfig(path string) (all []kubeletv1.CredentialProvider, hash string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, "", err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = configFiles(path); err != nil {
			return nil, "", err
		}
	}
	sum := sha256.New()
	for _, f := range files {
		data, err := safepath.ReadFile(f, safepath.ConfigSize)
		if err != nil {
			return nil, "", err
		}
		// The lengths make sure that different files never hash alike. A write to a hash never
		// fails.
		_, _ = sum.Write(append(binary.BigEndian.AppendUint64(nil, uint64(len(data))), data...))
		var cfg kubeletv1.CredentialProviderConfig
		if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
			return nil, "", fmt.Errorf("%s: %w", f, err)
		}
		if cfg.Kind != "CredentialProviderConfig" || !slices.Contains(configVersions, cfg.APIVersion) {
			return nil, "", fmt.Errorf("%s: kind %q of %q, want CredentialProviderConfig of %s", f, cfg.Kind, cfg.APIVersion, strings.Join(configVersions, " or "))
		}
		all = append(all, cfg.Providers...)
	}
	return all, fmt.Sprintf("sha256:%x", sum.Sum(nil)), validate(all)
}

func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no configuration files found in directory %q", dir)
	}
	return files, nil
}

func validate(all []kubeletv1.CredentialProvider) error {
	if len(all) == 0 {
		return errors.New("providers: at least one is required")
	}
	seen := map[string]bool{}
	var errs []error
	for i := range all {
		p := &all[i]
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("provider %q: %s", p.Name, fmt.Sprintf(format, args...)))
		}
		if seen[p.Name] {
			bad("the name is not unique")
		}
		seen[p.Name] = true
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
			bad("name must be a file name without '/' and spaces")
		}
		if !slices.Contains(apiVersions, p.APIVersion) {
			bad("apiVersion %q must be one of %s", p.APIVersion, strings.Join(apiVersions, ", "))
		}
		if len(p.MatchImages) == 0 {
			bad("matchImages: at least one is required")
		}
		for _, m := range p.MatchImages {
			if _, err := parseURL(m); err != nil {
				bad("matchImages: %q is invalid: %v", m, err)
			}
		}
		if d := p.DefaultCacheDuration; d == nil || d.Duration < 0 {
			bad("defaultCacheDuration is required, and must not be negative")
		}
		validateTokens(p, bad)
	}
	return errors.Join(errs...)
}

func validateTokens(p *kubeletv1.CredentialProvider, bad func(string, ...any)) {
	t := p.TokenAttributes
	if t == nil {
		return
	}
	if p.APIVersion != tokenAPI {
		bad("tokenAttributes is only supported for %s", tokenAPI)
	}
	if t.ServiceAccountTokenAudience == "" {
		bad("tokenAttributes.serviceAccountTokenAudience is required")
	}
	switch {
	case t.RequireServiceAccount == nil:
		bad("tokenAttributes.requireServiceAccount is required")
	case !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0:
		bad("tokenAttributes.requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set")
	}
	if t.CacheType != kubeletv1.ServiceAccountServiceAccountTokenCacheType && t.CacheType != kubeletv1.TokenServiceAccountTokenCacheType {
		bad("tokenAttributes.cacheType %q must be ServiceAccount or Token", t.CacheType)
	}
	for _, list := range [][]string{t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys} {
		for i, k := range list {
			for _, problem := range validation.IsQualifiedName(strings.ToLower(k)) {
				bad("tokenAttributes: annotation %q: %s", k, problem)
			}
			if slices.Contains(list[:i], k) {
				bad("tokenAttributes: annotation %q is listed twice", k)
			}
		}
	}
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		if slices.Contains(t.OptionalServiceAccountAnnotationKeys, k) {
			bad("tokenAttributes: annotation %q cannot be both required and optional", k)
		}
	}
}

// Load reads the configuration (a file or a directory) and finds the plugins' executables.
func Load(config, binDir string, accounts Accounts) (*Plugins, error) {
	all, hash, err := readConfig(config)
	if err != nil {
		return nil, fmt.Errorf("image credential providers: %w", err)
	}
	if _, err := os.Stat(binDir); err != nil {
		return nil, fmt.Errorf("image credential providers: plugin directory: %w", err)
	}
	metrics.PluginConfig.Reset()
	metrics.PluginConfig.WithLabelValues(hash).Set(1)
	ps := &Plugins{accounts: accounts}
	for _, p := range all {
		bin, err := exec.LookPath(filepath.Join(binDir, p.Name))
		if err != nil {
			return nil, fmt.Errorf("image credential providers: %w", err)
		}
		ps.list = append(ps.list, newPlugin(p, executable(bin, p)))
	}
	return ps, nil
}
