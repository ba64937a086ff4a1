package confine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	profiles "github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
)

// defaultAppArmor is the name of the default profile in the kernel.
const defaultAppArmor = "wherry-default"

// loadedAppArmor lists the profiles that the kernel has.
const loadedAppArmor = "/sys/kernel/security/apparmor/profiles"

// AppArmor returns the name of the profile for the container's first process, or "" for an
// unconfined one.
func AppArmor(sec *runtimeapi.LinuxContainerSecurityContext) (string, error) {
	name, err := chooseAppArmor(sec, apparmor.HostSupports())
	switch {
	case err != nil || name == "":
		return "", err
	case name == defaultAppArmor:
		if err := profiles.LoadDefaultProfile(defaultAppArmor); err != nil {
			return "", fmt.Errorf("load the default AppArmor profile: %w", err)
		}
		return name, nil
	}
	f, err := os.Open(loadedAppArmor)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), name+" (") {
			return name, nil
		}
	}
	return "", errors.Join(crierror.Invalid("apparmor profile not found %s; load it on this node first", name), lines.Err())
}

// chooseAppArmor picks a profile. A container that names none gets the default profile if the
// machine has AppArmor, as Kubernetes promises.
func chooseAppArmor(sec *runtimeapi.LinuxContainerSecurityContext, supported bool) (string, error) {
	p := sec.GetApparmor()
	if p == nil {
		p = oldAppArmor(sec.GetApparmorProfile()) //nolint:staticcheck // older clients use this field
	}
	if !supported {
		if p != nil && p.GetProfileType() != runtimeapi.SecurityProfile_Unconfined {
			return "", crierror.Invalid("apparmor is not supported on this machine")
		}
		return "", nil
	}
	switch p.GetProfileType() { // without a profile the type is RuntimeDefault
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if sec.GetPrivileged() {
			return "", nil
		}
		return defaultAppArmor, nil
	case runtimeapi.SecurityProfile_Unconfined:
		return "", nil
	}
	name := strings.TrimPrefix(p.GetLocalhostRef(), "localhost/")
	if name == "" {
		return "", crierror.Invalid("an apparmor profile of type Localhost needs a name")
	}
	return name, nil
}

// oldAppArmor parses a profile named in CRI's older form.
func oldAppArmor(s string) *runtimeapi.SecurityProfile {
	switch s {
	case "":
		return nil
	case "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case "runtime/default":
		return &runtimeapi.SecurityProfile{}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: s}
}
