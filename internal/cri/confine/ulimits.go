package confine

import (
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/oci"
)

// Ulimits are the limits of an instance's containers.
type Ulimits struct {
	Default []string // for every container, such as nofile=1024:2048
	Raises  bool     // limits may be set above our own

	clampOnce sync.Once // logs once that some were lowered
}

// For returns the configured limits, overridden by those that the pod's annotation has for
// the container.
func (u *Ulimits) For(pod *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) ([]specs.POSIXRlimit, error) {
	var all []specs.POSIXRlimit
	for _, text := range u.Default {
		l, err := oci.ParseUlimit(text)
		if err != nil {
			return nil, err
		}
		all = oci.MergeUlimits(all, []specs.POSIXRlimit{l})
	}
	key := oci.UlimitAnnotation + cfg.GetMetadata().GetName()
	if doc, ok := pod.GetAnnotations()[key]; ok {
		asked, err := oci.ParseUlimits(doc)
		if err != nil {
			return nil, crierror.Invalid("annotation %s: %w", key, err)
		}
		all = oci.MergeUlimits(all, asked)
	}
	if u.Raises {
		return all, nil
	}
	all, clamped, err := oci.ClampUlimits(all)
	if len(clamped) > 0 {
		u.clampOnce.Do(func() {
			klog.InfoS("No CAP_SYS_RESOURCE, containers' ulimits cannot be higher than Wherry's own", "first", clamped)
		})
	}
	return all, err
}
