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

// The command lines that are spoken here.
const (
	Crun = "crun"
	Runc = "runc"
)

// typeOf goes by the program's name; most other runtimes have runc's command line.
func typeOf(path string) string {
	if strings.HasPrefix(filepath.Base(path), Crun) {
		return Crun
	}
	return Runc
}

// Features are what a runtime can do with the kernel's help, as far as pods have to know.
type Features struct {
	RecursiveReadOnly bool
	UserNamespaces    bool
}

// featuresTimeout bounds a program that is not what it was taken for.
const featuresTimeout = 5 * time.Second

// readFeatures asks the runtime (runtime-spec, features.md). crun and runc themselves
// need not be asked: those that are too old for the command can do both.
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
		klog.FromContext(ctx).Info("An OCI runtime does not tell its features: no user namespaces, no recursive read-only mounts", "handler", r.Name, "reason", err)
		return Features{}
	}
	f, err := parseFeatures(out)
	if err != nil {
		klog.FromContext(ctx).Error(err, "An OCI runtime's features cannot be read", "handler", r.Name)
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
