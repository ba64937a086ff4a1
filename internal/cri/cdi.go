package cri

import (
	"errors"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"wherry.dev/internal/safepath"
)

// cdiDevices returns the qualified names of the devices that a container asks for: from CRI's
// field, and from annotations (cdi.k8s.io/…), which device plugins used before that field
// existed.
func cdiDevices(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	var names []string
	for _, d := range cfg.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	_, annotated, err := cdi.ParseAnnotations(cfg.GetAnnotations())
	if err != nil {
		return nil, invalid("CDI annotations: %w", err)
	}
	for _, name := range annotated {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// injectCDI adds what the devices' specs call for: nodes, mounts, variables and hooks. It reads
// the specs again each time, because drivers replace them.
func (s *Server) injectCDI(spec *specs.Spec, cfg *runtimeapi.ContainerConfig) error {
	names, err := cdiDevices(cfg)
	if err != nil || len(names) == 0 {
		return err
	}
	for _, dir := range s.cfg.CDISpecDirs {
		if err := safepath.CheckFiles(dir, ".json", ".yaml"); err != nil {
			return fmt.Errorf("CDI device injection failed: %w", err)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.cfg.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read CDI specs: %w", err)
	}
	unresolved, err := cache.InjectDevices(spec, names...)
	if len(unresolved) == 0 {
		return err
	}
	for _, errs := range cache.GetErrors() { // an unreadable spec may be the reason
		err = errors.Join(append([]error{err}, errs...)...)
	}
	return notFound("CDI device injection failed (specs in %q): %w", s.cfg.CDISpecDirs, err)
}
