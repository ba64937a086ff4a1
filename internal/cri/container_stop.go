package cri

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/trace"
)

// StopContainer sends the stop signal and, after the timeout (in seconds), SIGKILL. It returns
// once the container has exited. It can be repeated, with a shorter timeout, too, while another
// call waits or after a caller gave up. A container that does not exist counts as stopped.
func (s *Server) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.container(req.GetContainerId())
	if crierror.IsNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	if err := c.Stop(ctx, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, fmt.Errorf("stop container %s: %w", c.ID, err)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}
