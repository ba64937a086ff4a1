package admission

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"sigs.k8s.io/yaml"
)

// configuration holds what plugins are configured by, by their names.
type configuration map[string][]byte

var _ admission.ConfigProvider = configuration{}

// ConfigFor implements admission.ConfigProvider. Without a configuration the reader is nil.
func (c configuration) ConfigFor(name string) (io.Reader, error) {
	if data, ok := c[name]; ok {
		return bytes.NewReader(data), nil
	}
	return nil, nil
}

// unversioned are the plugins whose configuration has no version; the value is the only field of it.
// kube-apiserver still takes such a file in the place of an AdmissionConfiguration.
var unversioned = map[string]string{
	"ImagePolicyWebhook": "imagePolicy",
	"PodNodeSelector":    "podNodeSelectorPluginConfig",
}

// configuration reads the file of --admission-control-config-file and those that it names, whose paths
// are relative to it. (The library's own reader ends the process if one of those is missing.)
func (s Selection) configuration() (configuration, error) {
	if s.ConfigFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file: %w", err)
	}
	out, err := parse(data, filepath.Dir(s.ConfigFile))
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file %s: %w", s.ConfigFile, err)
	}
	return out, nil
}

func parse(data []byte, dir string) (configuration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if runtime.IsMissingVersion(err) || runtime.IsMissingKind(err) {
		if old := parseUnversioned(data); len(old) > 0 {
			return old, nil
		}
	}
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("its kind must be AdmissionConfiguration, not %s", obj.GetObjectKind().GroupVersionKind().Kind)
	}
	out := configuration{}
	for i, p := range config.Plugins {
		if !slices.Contains(Names(), p.Name) {
			return nil, fmt.Errorf("plugins[%d].name: admission plugin %q is unknown", i, p.Name)
		}
		if _, twice := out[p.Name]; twice {
			return nil, fmt.Errorf("plugins[%d].name: admission plugin %q is configured twice", i, p.Name)
		}
		switch {
		case p.Configuration != nil:
			out[p.Name] = p.Configuration.Raw
		case p.Path != "":
			path := p.Path
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			if out[p.Name], err = os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("plugins[%d].path: configuration of admission plugin %s: %w", i, p.Name, err)
			}
		}
	}
	return out, nil
}

func parseUnversioned(data []byte) configuration {
	var fields map[string]any
	if yaml.Unmarshal(data, &fields) != nil {
		return nil
	}
	out := configuration{}
	for name, field := range unversioned {
		if _, ok := fields[field]; ok {
			out[name] = data
		}
	}
	return out
}

// readStrict reads a plugin's configuration. A field that into does not have is an error.
func readStrict(plugin string, config io.Reader, into any) error {
	data, err := io.ReadAll(config)
	if err != nil {
		return fmt.Errorf("configuration of admission plugin %s: %w", plugin, err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("configuration of admission plugin %s: %w", plugin, err)
	}
	return nil
}

// checkKind returns an error if a plugin's configuration has another version or kind than it must have.
func checkKind(plugin, apiVersion, kind, wantVersion string) error {
	if apiVersion != wantVersion || kind != "Configuration" {
		return fmt.Errorf("configuration of admission plugin %s: it is %q of %q, and must be %q of %q",
			plugin, kind, apiVersion, "Configuration", wantVersion)
	}
	return nil
}
