package cri

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/trace"
)

// ExecSync runs a command and returns its output and exit code.
func (s *Server) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if len(req.GetCmd()) == 0 {
		return nil, crierror.Invalid("no command specified")
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	resp, err := c.ExecSync(ctx, req.GetCmd(), time.Duration(req.GetTimeout())*time.Second)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	return resp, nil
}
