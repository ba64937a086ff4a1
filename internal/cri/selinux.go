package cri

import (
	"os"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkSELinux refuses labels on a machine where they would mean something: none are
// set here, and a container must not run with less confinement than it was given.
func checkSELinux(sec *runtimeapi.LinuxContainerSecurityContext, enabled bool) error {
	if enabled && sec.GetSelinuxOptions() != nil && proto.Size(sec.GetSelinuxOptions()) > 0 {
		return unimplemented("an SELinux label")
	}
	return nil
}

// selinuxEnabled tells whether the machine has SELinux.
func selinuxEnabled() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}
