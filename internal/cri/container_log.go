package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
)

// ReopenContainerLog has conmon write to a new file at the log's path, after a rotation has moved
// the old one away. Once it returns, every later line goes to the new file. If it fails, conmon
// still writes to the moved file, which can get its name back. Without a rotation there is
// nothing to do.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.LogPath() == "" {
		return nil, crierror.Precondition("container %s has no log", c.ID)
	}
	if err := c.ReopenLog(ctx); err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", c.ID, err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
