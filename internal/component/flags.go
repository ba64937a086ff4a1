package component

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// NoEffect are upstream's flags that have no effect here.
type NoEffect struct {
	// Ignored are those that nobody would miss, each with the reason: they are accepted, and a warning is logged.
	Ignored map[string]string
	// Refused are those without which the cluster would not be what was asked for.
	Refused map[string]Refusal
	// Switches are those, of either sort, that need no value. All others need one, which may follow after a space.
	Switches []string
}

// Refusal is why a flag is refused.
type Refusal struct {
	Why string
	// Fine reports whether a value asks for what is done anyway.
	Fine func(value string) bool
}

// AddFlags adds them, hidden. Some that upstream accepts several times have here the last of their values.
func (n NoEffect) AddFlags(f *pflag.FlagSet) {
	for name, why := range n.Ignored {
		n.add(f, name, "Accepted without effect: "+why+".")
	}
	for name, r := range n.Refused {
		n.add(f, name, "Refused: "+r.Why+".")
	}
}

func (n NoEffect) add(f *pflag.FlagSet, name, usage string) {
	if slices.Contains(n.Switches, name) {
		f.Bool(name, false, usage)
	} else {
		f.String(name, "", usage)
	}
	f.Lookup(name).Hidden = true
}

// Warn logs which of the ignored ones were given.
func (n NoEffect) Warn(ctx context.Context, f *pflag.FlagSet) {
	f.Visit(func(f *pflag.Flag) {
		if why, ok := n.Ignored[f.Name]; ok {
			klog.FromContext(ctx).Info("Flag has no effect", "flag", "--"+f.Name, "reason", why)
		}
	})
}

// Check returns an error for each flag that asks for what cannot be left out.
func (n NoEffect) Check(f *pflag.FlagSet) []error {
	var errs []error
	f.Visit(func(f *pflag.Flag) {
		if r, ok := n.Refused[f.Name]; ok && !r.Fine(f.Value.String()) {
			errs = append(errs, fmt.Errorf("--%s %s cannot be granted, leave it out: %s", f.Name, f.Value, r.Why))
		}
	})
	return errs
}

// With returns both together.
func (n NoEffect) With(other NoEffect) NoEffect {
	out := NoEffect{Ignored: maps.Clone(n.Ignored), Refused: maps.Clone(n.Refused), Switches: slices.Concat(n.Switches, other.Switches)}
	if out.Ignored == nil {
		out.Ignored = map[string]string{}
	}
	if out.Refused == nil {
		out.Refused = map[string]Refusal{}
	}
	maps.Copy(out.Ignored, other.Ignored)
	maps.Copy(out.Refused, other.Refused)
	return out
}

// IsEmpty reports whether a value asks for nothing.
func IsEmpty(value string) bool { return value == "" }

// IsZero reports whether a number asks for nothing.
func IsZero(value string) bool { return value == "" || value == "0" }

// IsFalse reports whether a switch asks for nothing.
func IsFalse(value string) bool { return value == "false" }

// WriteConfig writes a component's configuration to a file, as YAML (--write-config-to).
func WriteConfig(path string, config any) error {
	doc, err := yaml.Marshal(config)
	if err == nil {
		err = os.WriteFile(path, doc, 0o644) //nolint:gosec // it has no secrets
	}
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// Gate returns the name of a feature gate, which upstream's programs take with or without the name of Kubernetes' component.
func Gate(name string) string { return strings.TrimPrefix(name, "kube:") }

// Emulation are the flags of upstream's servers that let them behave as an earlier version does.
var Emulation = NoEffect{
	Ignored: map[string]string{"min-compatibility-version": "no earlier version is emulated"},
	Refused: map[string]Refusal{
		"emulated-version": {"Kubernetes " + kubeversion.DefaultKubeBinaryVersion + " is the only version that this program can be", func(v string) bool {
			for one := range strings.SplitSeq(v, ",") {
				if strings.TrimPrefix(one, "kube=") != kubeversion.DefaultKubeBinaryVersion {
					return false
				}
			}
			return true
		}},
	},
}
