package cri

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
)

// seccompCache hands profiles to the OCI runtime.
type seccompCache struct{}

func newSeccompCache() *seccompCache { return &seccompCache{} }

// profile is what a container asked for: neither is unconfined.
type profile struct {
	runtimeDefault bool
	localhost      *specs.LinuxSeccomp
}

// seccompProfile reads what the container's security context asks for. No profile
// at all means unconfined, as CRI says; the kubelet always names one.
func (s *Server) seccompProfile(sec *runtimeapi.LinuxContainerSecurityContext) (profile, error) {
	p := sec.GetSeccomp()
	if p == nil {
		return profile{}, nil
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return profile{runtimeDefault: true}, nil
	case runtimeapi.SecurityProfile_Unconfined:
		return profile{}, nil
	}
	path := strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
	doc, err := os.ReadFile(path)
	if err != nil {
		return profile{}, fmt.Errorf("seccomp profile: %w", err)
	}
	var l specs.LinuxSeccomp
	if err := json.Unmarshal(doc, &l); err != nil {
		return profile{}, invalid("seccomp profile %s: %w", path, err)
	}
	return profile{localhost: &l}, nil
}

// apply puts the profile into the spec.
func (c *seccompCache) apply(_ *oci.Runtime, spec *specs.Spec, p profile) {
	switch {
	case p.runtimeDefault:
		spec.Linux.Seccomp = seccomp.DefaultProfile(spec)
	case p.localhost != nil:
		spec.Linux.Seccomp = p.localhost
	}
}
