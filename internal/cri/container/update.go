package container

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/oci"
)

// UpdateResources changes its limits while it is created or runs. Fields that are zero leave the limit
// unchanged.
func (c *Container) UpdateResources(r *runtimeapi.LinuxContainerResources) error {
	c.op.Lock()
	defer c.op.Unlock()
	if c.State() == runtimeapi.ContainerState_CONTAINER_EXITED {
		return crierror.Precondition("container %s has exited", c.ID)
	}
	if err := cgroup.Update(c.rec.Cgroup, oci.Resources(r)); err != nil {
		return fmt.Errorf("update resources of container %s: %w", c.ID, err)
	}
	return c.update(func(st *State) { st.Resources.M = mergeResources(st.Resources.M, r) })
}

// mergeResources returns old, overridden by the fields set in next.
func mergeResources(old, next *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	if old == nil {
		old = &runtimeapi.LinuxContainerResources{}
	}
	merged := proto.CloneOf(old)
	if len(next.GetHugepageLimits()) > 0 {
		merged.HugepageLimits = nil
	}
	if next != nil {
		proto.Merge(merged, next)
	}
	return merged
}
