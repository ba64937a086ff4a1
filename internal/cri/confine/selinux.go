package confine

import (
	"os"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
)

// CheckSELinux refuses labels on a machine where they would have an effect: this runtime sets
// none, and a container must not run with less confinement than was asked for.
func CheckSELinux(sec *runtimeapi.LinuxContainerSecurityContext, enabled bool) error {
	if enabled && sec.GetSelinuxOptions() != nil && proto.Size(sec.GetSelinuxOptions()) > 0 {
		return crierror.Unimplemented("an SELinux label")
	}
	return nil
}

// HasSELinux reports whether the machine has SELinux.
func HasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}
