package cri

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/oci"
)

// UpdateContainerResources changes the limits of a created or running container.
// Fields that are zero leave the limit unchanged.
func (s *Server) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.op.Lock()
	defer c.op.Unlock()
	if st := c.current().state(); st == runtimeapi.ContainerState_CONTAINER_EXITED {
		return nil, precondition("container %s has exited", c.id)
	}
	if err := cgroup.Update(c.rec.Cgroup, oci.Resources(req.GetLinux())); err != nil {
		return nil, fmt.Errorf("update resources of container %s: %w", c.id, err)
	}
	err = c.update(func(st *containerStatus) { st.Resources.m = mergeResources(st.Resources.m, req.GetLinux()) })
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
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
