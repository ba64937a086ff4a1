package oci

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// The kinds of command lines that are supported.
const (
	Crun = "crun"
	Runc = "runc"
)

// typeOf guesses from the program's name; most other runtimes have runc's command line.
func typeOf(path string) string {
	if strings.HasPrefix(filepath.Base(path), Crun) {
		return Crun
	}
	return Runc
}

// Features are the abilities of a runtime that pods depend on.
type Features struct {
	RecursiveReadOnly bool
	UserNamespaces    bool
}

// featuresTimeout bounds the run of a program that may not be an OCI runtime at all.
const featuresTimeout = 5 * time.Second

// readFeatures asks the runtime (runtime-spec, features.md). It does not ask crun and runc: even
// versions that are too old for the command can do both.
func (r *Runtime) readFeatures(ctx context.Context) Features {
	base := filepath.Base(r.Path)
	if strings.HasPrefix(base, Crun) || strings.HasPrefix(base, Runc) {
		return Features{RecursiveReadOnly: true, UserNamespaces: true}
	}
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Path, append(slices.Clone(r.Options), "features")...)
	cmd.Env = cleanEnv(os.Environ())
	out, err := cmd.Output()
	if err != nil {
		klog.FromContext(ctx).Info("An OCI runtime does not report its features; user namespaces and recursive read-only mounts are unavailable", "handler", r.Name, "reason", err)
		return Features{}
	}
	f, err := parseFeatures(out)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot parse an OCI runtime's features", "handler", r.Name)
	}
	return f
}

func parseFeatures(doc []byte) (Features, error) {
	var f struct {
		MountOptions []string `json:"mountOptions"`
		Linux        struct {
			Namespaces []string `json:"namespaces"`
		} `json:"linux"`
	}
	err := json.Unmarshal(doc, &f)
	return Features{
		RecursiveReadOnly: slices.Contains(f.MountOptions, "rro"), UserNamespaces: slices.Contains(f.Linux.Namespaces, "user"),
	}, err
}
