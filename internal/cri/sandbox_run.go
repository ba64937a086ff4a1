package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/trace"
)

// RunPodSandbox makes a sandbox and returns when it is ready. A repeated call joins the one in
// flight, or returns the sandbox of one that has finished.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := sandbox.Check(req.GetConfig()); err != nil {
		return nil, err
	}
	if _, err := s.handlers.Get(req.GetRuntimeHandler()); err != nil {
		return nil, crierror.Invalid("%w", err)
	}
	if sandbox.OwnUserns(req.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()) != nil {
		if !s.translates() {
			return nil, crierror.Precondition("user namespaces are not supported here: the kernel or the file system of %s has no ID-mapped mounts", s.images.Dir())
		}
		if err := sandbox.CheckReach(s.cfg.State); err != nil {
			return nil, err
		}
	}
	m := req.GetConfig().GetMetadata()
	ctx = trace.WithPod(ctx, m.GetUid())
	id, err := s.flights.join(ctx, sandbox.Key(m), req, func(ctx context.Context) (string, error) {
		return s.runSandbox(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// runSandbox takes these steps:
//
//  1. write the record, by which what a crash leaves from here on is found and removed
//  2. make files and the shared memory
//  3. make and pin the namespaces; set hostname and sysctls
//  4. connect the network
//  5. start an init for the pod's PID namespace, if the pod shares one
//  6. write the status: ready
func (s *Server) runSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (id string, err error) {
	ctx, span := trace.Start(ctx, "cri: run sandbox")
	defer func() { _ = trace.End(span, err) }()
	if old := s.sandboxByKey(sandbox.Key(req.GetConfig().GetMetadata())); old != nil {
		return reuseSandbox(old, req)
	}
	b := s.sandboxEnv.Plan(req)
	b.Op.Lock()
	defer b.Op.Unlock()
	if err := b.Make(ctx); err != nil {
		if cerr := b.Clear(context.WithoutCancel(ctx)); cerr != nil {
			err = errors.Join(err, cerr) // the next start finds it again
		}
		return "", fmt.Errorf("run sandbox of pod %s/%s: %w", b.Config.GetMetadata().GetNamespace(), b.Config.GetMetadata().GetName(), err)
	}
	s.addSandbox(b)
	s.emit(b.ID, b, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.emit(b.ID, b, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if b.SharesPIDs() {
		return b.ID, s.watchInit(b) //nolint:contextcheck // the watch ends with the server
	}
	return b.ID, nil
}

// reuseSandbox answers a repeated call whose first attempt succeeded without the caller noticing.
func reuseSandbox(b *sandbox.Sandbox, req *runtimeapi.RunPodSandboxRequest) (string, error) {
	if b.Ready() && proto.Equal(b.Config, req.GetConfig()) && b.Handler() == req.GetRuntimeHandler() {
		return b.ID, nil
	}
	return "", crierror.AlreadyExists("%s already exists as %s; remove it, or use a higher attempt", b.Key, b.ID)
}

// watchInit marks the sandbox as stopped when its init dies: the kernel has then killed the
// containers in its PID namespace, too.
func (s *Server) watchInit(b *sandbox.Sandbox) error {
	monitor, err := b.InitMonitor()
	if err != nil {
		return err
	}
	m := b.Config.GetMetadata()
	log := klog.FromContext(s.ctx).WithValues("sandbox", b.ID, "pod", klog.KRef(m.GetNamespace(), m.GetName()))
	until := klog.NewContext(s.ctx, log)
	s.work.Go(func() {
		if monitor != nil && !monitor.WaitUntil(until) {
			return
		}
		b.Op.Lock()
		defer b.Op.Unlock()
		if !b.Ready() {
			return // stopped on purpose
		}
		log.Info("The pod's init has died, and with it all containers in the pod's PID namespace")
		if err := b.NoteStop(); err != nil {
			log.Error(err, "Cannot record that the sandbox has stopped; it counts as ready until the next start")
		}
		s.emit(b.ID, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	})
	return nil
}
