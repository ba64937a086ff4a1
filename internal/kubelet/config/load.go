package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"github.com/spf13/pflag"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/safepath"
)

// strict decodes a KubeletConfiguration; unknown and duplicate fields are errors.
var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	if err := kubeletconfig.AddToScheme(scheme); err != nil {
		panic(err) // two types of one name: the first test would fail
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// LoadFiles reads --config and then the drop-ins of --config-dir on top of it. Flags that were
// given take precedence over both. fs is the flag set that AddFlags filled, parsed.
//
// Drop-ins are merged as JSON (RFC 7396): objects field by field, lists as a whole, null restores
// the default. Defaults apply to whole fields: naming one hard eviction threshold means that none
// of the others has a default, unless mergeDefaultEvictionSettings is set.
func (c *Config) LoadFiles(fs *pflag.FlagSet) error {
	if c.ConfigFile == "" && c.ConfigDir == "" {
		return nil
	}
	merged := []byte("{}")
	if c.ConfigFile != "" {
		data, err := readConfig(c.ConfigFile)
		if err != nil {
			return fmt.Errorf("failed to load kubelet config file, path: %s, error: %w", c.ConfigFile, err)
		}
		merged = data
	}
	if c.ConfigDir != "" {
		var err error
		if merged, err = mergeDropIns(merged, c.ConfigDir); err != nil {
			return fmt.Errorf("failed to merge kubelet configs: %w", err)
		}
	}
	loaded := *c
	loaded.KubeletConfiguration = kubeletconfig.KubeletConfiguration{}
	if err := json.Unmarshal(merged, &loaded.KubeletConfiguration); err != nil {
		return fmt.Errorf("failed to unmarshal merged JSON into kubelet configuration: %w", err)
	}
	if c.ConfigFile != "" {
		if err := resolvePaths(&loaded.KubeletConfiguration, c.ConfigFile); err != nil {
			return err
		}
	}
	setDefaults(&loaded.KubeletConfiguration)
	if err := loaded.setAgain(fs); err != nil {
		return err
	}
	*c = loaded
	return nil
}

// readConfig checks a file and returns it as JSON.
func readConfig(path string) ([]byte, error) {
	data, err := safepath.ReadFile(path, safepath.ConfigSize)
	if err != nil {
		return nil, err
	}
	obj, kind, err := strict.Decode(data, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil, fmt.Errorf("unknown apiVersion/kind: %s, want KubeletConfiguration of %s", kind, kubeletconfig.SchemeGroupVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to decode: %w", err)
	}
	if _, ok := obj.(*kubeletconfig.KubeletConfiguration); !ok {
		return nil, fmt.Errorf("unknown apiVersion/kind: %s, want KubeletConfiguration of %s", kind, kubeletconfig.SchemeGroupVersion)
	}
	return yaml.YAMLToJSON(data)
}

// mergeDropIns merges all *.conf files below a directory, in lexical order of their paths.
func mergeDropIns(merged []byte, dir string) ([]byte, error) {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path == dir && !e.IsDir() {
			return errors.New("it is not a directory")
		}
		if err != nil || e.IsDir() || filepath.Ext(e.Name()) != ".conf" {
			return err
		}
		patch, err := readConfig(path)
		if err != nil {
			return fmt.Errorf("failed to load kubelet dropin file, path: %s, error: %w", path, err)
		}
		merged, err = jsonpatch.MergePatch(merged, patch)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to walk through kubelet dropin directory %q: %w", dir, err)
	}
	return merged, nil
}

// resolvePaths makes relative paths in a config file relative to the file's directory.
func resolvePaths(k *kubeletconfig.KubeletConfiguration, file string) error {
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return err
	}
	for _, path := range []*string{
		&k.StaticPodPath, &k.Authentication.X509.ClientCAFile, &k.TLSCertFile, &k.TLSPrivateKeyFile, k.ResolverConfig,
		&k.VolumePluginDir, &k.PodLogsDir,
	} {
		if path != nil && *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	return nil
}

// setAgain applies the flags that were given on top of what the files say.
func (c *Config) setAgain(given *pflag.FlagSet) error {
	gates := c.FeatureGates
	again := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(again)
	var errs []error
	given.Visit(func(f *pflag.Flag) {
		to := again.Lookup(f.Name)
		if to == nil {
			return // another command's flag
		}
		if from, ok := f.Value.(pflag.SliceValue); ok {
			errs = append(errs, to.Value.(pflag.SliceValue).Replace(from.GetSlice()))
			return
		}
		if err := to.Value.Set(f.Value.String()); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", f.Name, err))
		}
	})
	// Feature gates are merged one by one: the file's and the flag's.
	all := maps.Clone(gates)
	if all == nil {
		all = map[string]bool{}
	}
	maps.Copy(all, c.FeatureGates)
	if len(all) > 0 {
		c.FeatureGates = all
	}
	return errors.Join(errs...)
}
