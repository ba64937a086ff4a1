package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// CreateContainer makes a container that waits to be started. A repeated call joins the one in
// flight, or returns the container of one that has finished.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if req.GetConfig().GetMetadata().GetName() == "" {
		return nil, invalid("the container has no name")
	}
	b, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.uid())
	id, err := s.join(ctx, containerKey(b.id, req.GetConfig().GetMetadata()), req, func(ctx context.Context) (string, error) {
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
func (s *Server) createContainer(ctx context.Context, b *sandbox, cfg *runtimeapi.ContainerConfig) (id string, err error) {
	ctx, span := trace.Start(ctx, "cri: create container")
	defer func() { _ = trace.End(span, err) }()
	b.op.RLock()
	defer b.op.RUnlock()
	if old := s.containerByKey(b.id, cfg.GetMetadata()); old != nil {
		if old.current().state() == runtimeapi.ContainerState_CONTAINER_CREATED && proto.Equal(old.config(), cfg) {
			return old.id, nil
		}
		return "", alreadyExists("%s already exists as %s; remove it, or use a higher attempt", containerKey(b.id, cfg.GetMetadata()), old.id)
	}
	if !b.ready() {
		return "", precondition("sandbox %s is not ready", b.id)
	}
	c, err := s.planContainer(b, cfg)
	if err != nil {
		return "", err
	}
	err = s.makeContainer(ctx, b, c)
	var monitor *process
	if err == nil {
		monitor, err = openWatch(c)
	}
	if err != nil {
		if cerr := s.clearContainer(context.WithoutCancel(ctx), c); cerr != nil {
			err = errors.Join(err, cerr) // the next start finds it again
		}
		return "", fmt.Errorf("create container %s: %w", cfg.GetMetadata().GetName(), err)
	}
	s.mu.Lock()
	s.containers[c.id] = c
	s.mu.Unlock()
	s.emit(c.id, b, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.watch(ctx, c, monitor)
	return c.id, nil
}

func (s *Server) containerByKey(sandboxID string, m *runtimeapi.ContainerMetadata) *container {
	for _, c := range s.containersOf(sandboxID) {
		if proto.Equal(c.config().GetMetadata(), m) {
			return c
		}
	}
	return nil
}

// planContainer decides everything that can be decided without an effect.
func (s *Server) planContainer(b *sandbox, cfg *runtimeapi.ContainerConfig) (*container, error) {
	ref := cfg.GetImage().GetImage()
	img, ok := s.images.Lookup(ref)
	if !ok {
		return nil, notFound("image %q is not present; pull it first", ref)
	}
	cdi, err := cdiDevices(cfg)
	if err != nil {
		return nil, err
	}
	if err := checkSELinux(cfg.GetLinux().GetSecurityContext(), selinuxEnabled()); err != nil {
		return nil, err
	}
	if err := checkContainerUserns(b, cfg); err != nil {
		return nil, err
	}
	stop, err := oci.StopSignal(cfg, img.Config)
	if err != nil {
		return nil, invalid("%w", err)
	}
	r, err := s.handler(b.rec.Handler)
	if err != nil {
		return nil, err
	}
	id := newID()
	rec := containerRecord{
		ID: id, Boot: s.boot, SandboxID: b.id, ImageID: img.ID, Image: img.Config, CreatedAt: nanos(time.Now()),
		Cgroup: filepath.Join(s.cgroupParent(b), id), StopSignal: stop,
		Volumes: s.volumeImages(cfg), Hooked: len(cdi) > 0,
	}
	rec.Config.m = proto.CloneOf(cfg)
	if cfg.GetLogPath() != "" && b.config.GetLogDirectory() != "" {
		rec.Log = filepath.Join(b.config.GetLogDirectory(), filepath.Clean("/"+cfg.GetLogPath()))
	}
	return s.newContainer(rec, r), nil
}

func (s *Server) makeContainer(ctx context.Context, b *sandbox, c *container) error {
	if err := os.MkdirAll(c.root, 0o711); err != nil {
		return err
	}
	failpoint("container-folder")
	if err := saveRecord(c.recordPath(), c.rec); err != nil {
		return err
	}
	failpoint("container-recorded")
	if err := s.images.Hold(c.rec.ImageID, c.id); err != nil {
		return err
	}
	if err := s.mountRootfs(ctx, b, c); err != nil {
		return err
	}
	failpoint("container-rootfs")
	spec, err := s.containerSpec(ctx, b, c)
	if err != nil {
		return err
	}
	if err := c.bundle.WriteSpec(spec); err != nil {
		return err
	}
	failpoint("container-spec")
	if c.runtime.OwnsCgroups() {
		if err := s.makeCgroup(ctx, c, spec.Linux.Resources); err != nil {
			return err
		}
	}
	failpoint("container-cgroup")
	if c.rec.Log != "" {
		if err := os.MkdirAll(filepath.Dir(c.rec.Log), 0o755); err != nil {
			return err
		}
		if err := checkLog(c.rec.Log); err != nil {
			return err
		}
	}
	err = s.ociCreate(ctx, c, spec.Process.User)
	if _, refused := errors.AsType[*oci.RefusedError](err); refused {
		err = c.update(func(st *containerStatus) { st.Refused, st.User = err.Error(), spec.Process.User })
	}
	if err != nil {
		return err
	}
	failpoint("container-status")
	return c.releaseVolumes()
}

func (s *Server) makeCgroup(ctx context.Context, c *container, r *specs.LinuxResources) (err error) {
	_, span := trace.Start(ctx, "cri: cgroup")
	defer func() { _ = trace.End(span, err) }()
	return cgroup.Ensure(c.rec.Cgroup, r)
}

// ociCreate has conmon and the runtime create the container, and records its process.
func (s *Server) ociCreate(ctx context.Context, c *container, user specs.User) (err error) {
	ctx, span := trace.Start(ctx, "oci: create")
	defer func() { _ = trace.End(span, err) }()
	pid, err := c.runtime.Create(ctx, c.bundle)
	if err != nil {
		return err
	}
	failpoint("container-created")
	start, err := processStart(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // it may be dead already: the watcher will see
		return err
	}
	return c.update(func(st *containerStatus) {
		st.PID, st.PIDStart, st.User = pid, start, user
		st.Resources.m = c.config().GetLinux().GetResources()
	})
}

// mountRootfs mounts a writable layer on top of the image's.
func (s *Server) mountRootfs(ctx context.Context, b *sandbox, c *container) (err error) {
	_, span := trace.Start(ctx, "cri: rootfs")
	defer func() { _ = trace.End(span, err) }()
	layers, err := s.images.Layers(c.rec.ImageID)
	if err != nil {
		return err
	}
	if err := os.Mkdir(c.bundle.Dir, 0o711); err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{c.upper(): 0o755, c.workdir(): 0o700, c.rootfs(): 0o755} {
		if err := os.Mkdir(dir, mode); err != nil {
			return err
		}
	}
	failpoint("container-folders")
	if err := os.Chown(c.upper(), b.owner(), b.owner()); err != nil { // it is the container's /
		return err
	}
	lowest, err := s.cfg.skeleton(c.config().GetMounts())
	if err != nil {
		return err
	}
	return b.overlay(c.rootfs(), append(layers, lowest), c.upper(), c.workdir(), filepath.Join(c.volumeDir(), "rootfs"))
}
