package cri

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"wherry.dev/internal/oci"
)

// handlers are the OCI runtimes by the names of their handlers (RuntimeClass).
type handlers struct {
	cfg Config
	all map[string]*oci.Runtime
}

func newHandlers(ctx context.Context, cfg Config) (*handlers, error) {
	h := &handlers{cfg: cfg, all: map[string]*oci.Runtime{}}
	for name, rc := range cfg.Runtimes {
		r, err := h.open(ctx, name, rc)
		if err != nil {
			return nil, err
		}
		h.all[name] = r
	}
	return h, nil
}

func (h *handlers) open(ctx context.Context, name string, rc RuntimeConfig) (*oci.Runtime, error) {
	r, err := oci.NewRuntime(ctx, oci.Runtime{
		Name: name, Path: rc.Path, Type: rc.Type, Options: rc.Options,
		State: h.cfg.layout().RuntimeState(name), Conmon: h.cfg.Conmon, Home: h.cfg.monitorCgroup(),
	})
	if err != nil {
		return nil, fmt.Errorf("runtime handler %s: %w", name, err)
	}
	return r, nil
}

// Get returns the OCI runtime of a handler; "" is the default.
func (h *handlers) Get(name string) (*oci.Runtime, error) {
	if name == "" {
		name = h.cfg.DefaultRuntime
	}
	r, ok := h.all[name]
	if !ok {
		return nil, fmt.Errorf("no runtime for %q is configured; configured are: %s", name, strings.Join(slices.Sorted(maps.Keys(h.all)), ", "))
	}
	return r, nil
}

// Former returns the OCI runtime of something that already exists. It also works for a handler
// that is no longer configured, so that its containers can still be removed.
func (h *handlers) Former(ctx context.Context, name string) (*oci.Runtime, error) {
	if r, err := h.Get(name); err == nil {
		return r, nil
	}
	klog.FromContext(ctx).Info("A pod's runtime handler is no longer configured; the pod can only be removed", "handler", name)
	return h.open(ctx, name, h.cfg.Runtimes[h.cfg.DefaultRuntime])
}
