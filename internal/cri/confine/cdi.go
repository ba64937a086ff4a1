package confine

import (
	"errors"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/safepath"
)

// CDIDevices returns the qualified names of the devices that a container asks for: from CRI's
// field, and from annotations (cdi.k8s.io/…), which device plugins used before that field
// existed.
func CDIDevices(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	var names []string
	for _, d := range cfg.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	_, annotated, err := cdi.ParseAnnotations(cfg.GetAnnotations())
	if err != nil {
		return nil, crierror.Invalid("CDI annotations: %w", err)
	}
	for _, name := range annotated {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// InjectCDI adds what the devices' specs in dirs call for: nodes, mounts, variables and hooks. It
// reads the specs again each time, because drivers replace them.
func InjectCDI(dirs []string, spec *specs.Spec, cfg *runtimeapi.ContainerConfig) error {
	names, err := CDIDevices(cfg)
	if err != nil || len(names) == 0 {
		return err
	}
	for _, dir := range dirs {
		if err := safepath.CheckFiles(dir, ".json", ".yaml"); err != nil {
			return fmt.Errorf("CDI device injection failed: %w", err)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
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
	return crierror.NotFound("CDI device injection failed (specs in %q): %w", dirs, err)
}
