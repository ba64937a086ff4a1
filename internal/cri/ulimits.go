package cri

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/oci"
)

// ulimits returns the configured limits, overridden by those that the pod's annotation has for
// the container.
func (s *Server) ulimits(b *sandbox, cfg *runtimeapi.ContainerConfig) ([]specs.POSIXRlimit, error) {
	var all []specs.POSIXRlimit
	for _, text := range s.cfg.DefaultUlimits {
		l, err := oci.ParseUlimit(text)
		if err != nil {
			return nil, err
		}
		all = oci.MergeUlimits(all, []specs.POSIXRlimit{l})
	}
	key := oci.UlimitAnnotation + cfg.GetMetadata().GetName()
	if doc, ok := b.config.GetAnnotations()[key]; ok {
		asked, err := oci.ParseUlimits(doc)
		if err != nil {
			return nil, invalid("annotation %s: %w", key, err)
		}
		all = oci.MergeUlimits(all, asked)
	}
	if s.host.RaisesLimits {
		return all, nil
	}
	all, clamped, err := oci.ClampUlimits(all)
	if len(clamped) > 0 {
		s.clampOnce.Do(func() {
			klog.InfoS("No CAP_SYS_RESOURCE: ulimits of containers are not set above Wherry's own", "first", clamped)
		})
	}
	return all, err
}
