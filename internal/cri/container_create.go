package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/trace"
)

// CreateContainer makes a container that waits to be started. A repeated call joins the one in
// flight, or returns the container of one that has finished.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if req.GetConfig().GetMetadata().GetName() == "" {
		return nil, crierror.Invalid("the container has no name")
	}
	b, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.UID())
	id, err := s.flights.join(ctx, container.Key(b.ID, req.GetConfig().GetMetadata()), req, func(ctx context.Context) (string, error) {
		return s.createContainer(ctx, b, req.GetConfig())
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// createContainer takes these steps:
//
//  1. write the record, by which what a crash leaves from here on is found and removed
//  2. hold the image; mount its layers and a writable one
//  3. write the spec
//  4. make the cgroup
//  5. have conmon and the OCI runtime create it. If the runtime refuses, the error is
//     reported when the container is started, as in containerd: a pod that must not be
//     restarted fails then, instead of being created over and over
//  6. write the status: from here on the container exists
func (s *Server) createContainer(ctx context.Context, b *sandbox.Sandbox, cfg *runtimeapi.ContainerConfig) (id string, err error) {
	ctx, span := trace.Start(ctx, "cri: create container")
	defer func() { _ = trace.End(span, err) }()
	b.Op.RLock()
	defer b.Op.RUnlock()
	if old := s.containerByKey(b.ID, cfg.GetMetadata()); old != nil {
		if old.State() == runtimeapi.ContainerState_CONTAINER_CREATED && proto.Equal(old.Config(), cfg) {
			return old.ID, nil
		}
		return "", crierror.AlreadyExists("%s already exists as %s; remove it, or use a higher attempt", container.Key(b.ID, cfg.GetMetadata()), old.ID)
	}
	if !b.Ready() {
		return "", crierror.Precondition("sandbox %s is not ready", b.ID)
	}
	target, err := s.pidTarget(b, cfg)
	if err != nil {
		return "", err
	}
	r, err := s.handlers.Get(b.Handler())
	if err != nil {
		return "", err
	}
	c, err := s.containerEnv.Plan(container.Request{Sandbox: b, Config: cfg, Runtime: r, Target: target})
	if err != nil {
		return "", err
	}
	err = c.Make(ctx, b)
	var monitor *monitor.Process
	if err == nil {
		monitor, err = c.OpenMonitor()
	}
	if err != nil {
		if cerr := c.Clear(context.WithoutCancel(ctx)); cerr != nil {
			err = errors.Join(err, cerr) // the next start finds it again
		}
		return "", fmt.Errorf("create container %s: %w", cfg.GetMetadata().GetName(), err)
	}
	s.addContainer(c)
	s.emit(c.ID, b, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.watch(ctx, c, monitor)
	return c.ID, nil
}

// pidTarget returns the container whose PID namespace a debug container is to share, or nil.
func (s *Server) pidTarget(b *sandbox.Sandbox, cfg *runtimeapi.ContainerConfig) (*container.Container, error) {
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return nil, nil
	}
	c, err := s.container(o.GetTargetId())
	if err != nil {
		return nil, fmt.Errorf("target of the PID namespace: %w", err)
	}
	if c.SandboxID() != b.ID {
		return nil, crierror.Invalid("target container %s is in another pod", o.GetTargetId())
	}
	return c, nil
}

// watch waits in the background for a container to exit. Closing the server ends the watch, not the
// container.
func (s *Server) watch(ctx context.Context, c *container.Container, monitor *monitor.Process) {
	ctx = trace.WithPod(context.WithoutCancel(ctx), s.uidOf(c))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("container", c.ID))
	s.work.Go(func() {
		until := klog.NewContext(s.ctx, klog.FromContext(ctx))
		if !c.WaitEnd(until, monitor) { //nolint:contextcheck // the watch ends with the server
			return // the server is closing
		}
		c.Finish(ctx, func() {
			if b := s.sandboxOf(c); b != nil {
				s.emit(c.ID, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
			}
		})
	})
}
