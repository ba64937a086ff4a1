// Package confine puts into a spec what confines a container: its seccomp and AppArmor profiles and its
// ulimits; and what a machine adds to it, by CDI. It refuses SELinux labels.
package confine

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	profiles "github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/oci/seccomp"
	"wherry.dev/internal/safepath"
)

// Profile is what a container asked for; with neither field set it is unconfined.
type Profile struct {
	runtimeDefault bool
	localhost      *specs.LinuxSeccomp
}

// ReadProfile reads what the container's security context asks for. No profile at
// all means unconfined, as CRI says; the kubelet always names one.
func ReadProfile(sec *runtimeapi.LinuxContainerSecurityContext) (Profile, error) {
	p := sec.GetSeccomp()
	if p == nil {
		p = oldProfile(sec.GetSeccompProfilePath()) //nolint:staticcheck // older clients use this field
	}
	if p == nil || sec.GetPrivileged() {
		return Profile{}, nil
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return Profile{runtimeDefault: true}, nil
	case runtimeapi.SecurityProfile_Unconfined:
		return Profile{}, nil
	}
	path := strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
	doc, err := safepath.ReadFile(path, safepath.ConfigSize)
	if err != nil {
		return Profile{}, fmt.Errorf("seccomp profile: %w", err)
	}
	var l specs.LinuxSeccomp
	if err := json.Unmarshal(doc, &l); err != nil {
		return Profile{}, crierror.Invalid("seccomp profile %s: %w", path, err)
	}
	return Profile{localhost: &l}, nil
}

// oldProfile parses a profile named in CRI's older form.
func oldProfile(path string) *runtimeapi.SecurityProfile {
	switch path {
	case "", "unconfined":
		return nil
	case "runtime/default", "docker/default":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}
}

// Seccomp keeps compiled profiles. The default profile depends on the container's
// capabilities, so there is one program for each kind of container.
type Seccomp struct {
	mu       sync.Mutex // guards programs
	programs map[string]string
}

// maxPrograms bounds the cache; a program that was dropped is compiled again.
const maxPrograms = 256

// NewSeccomp returns an empty cache.
func NewSeccomp() *Seccomp { return &Seccomp{programs: map[string]string{}} }

// Apply puts the profile into the spec: compiled if the runtime accepts a program, else as it is.
func (c *Seccomp) Apply(r *oci.Runtime, spec *specs.Spec, p Profile) error {
	if !p.runtimeDefault && p.localhost == nil {
		return nil
	}
	if r.TakesBPF() {
		program, err := c.program(spec, p)
		if err == nil {
			spec.Annotations = map[string]string{oci.BPFAnnotation: program}
			return nil
		}
		if !errors.Is(err, seccomp.ErrUnsupported) {
			return crierror.Invalid("%w", err)
		}
	}
	spec.Linux.Seccomp = p.load(spec)
	return nil
}

func (p Profile) load(spec *specs.Spec) *specs.LinuxSeccomp {
	if p.runtimeDefault {
		return profiles.DefaultProfile(spec)
	}
	return p.localhost
}

// key names the program without making the profile.
func (p Profile) key(spec *specs.Spec) (string, error) {
	if p.runtimeDefault {
		return "default " + strings.Join(spec.Process.Capabilities.Bounding, " "), nil
	}
	doc, err := json.Marshal(p.localhost)
	sum := sha256.Sum256(doc)
	return string(sum[:]), err
}

// program returns the compiled profile, in base64 as crun's annotation wants it.
func (c *Seccomp) program(spec *specs.Spec, p Profile) (string, error) {
	key, err := p.key(spec)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.programs[key]; ok {
		return have, nil
	}
	raw, err := seccomp.Compile(p.load(spec))
	if err != nil {
		return "", err
	}
	if len(c.programs) >= maxPrograms {
		clear(c.programs)
	}
	c.programs[key] = base64.StdEncoding.EncodeToString(raw)
	return c.programs[key], nil
}
