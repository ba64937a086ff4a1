package cri

import (
	"os"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkSELinux refuses labels on a machine where they would have an effect: this runtime sets
// none, and a container must not run with less confinement than was asked for.
func checkSELinux(sec *runtimeapi.LinuxContainerSecurityContext, enabled bool) error {
	if enabled && sec.GetSelinuxOptions() != nil && proto.Size(sec.GetSelinuxOptions()) > 0 {
		return unimplemented("an SELinux label")
	}
	return nil
}

// selinuxEnabled reports whether the machine has SELinux.
func selinuxEnabled() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}
