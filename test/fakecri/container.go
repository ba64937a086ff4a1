package fakecri

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// CreateContainer makes a container in a sandbox.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	if err := r.begin(ctx, "CreateContainer", cfg.Metadata.Name); err != nil {
		return "", err
	}
	r.mu.Lock()
	s := r.sandboxes[sandboxID]
	if s == nil || !s.ready {
		r.mu.Unlock()
		return "", notFound("ready sandbox", sandboxID)
	}
	for _, c := range r.containers {
		if c.sandbox.cfg.Metadata.Uid != s.cfg.Metadata.Uid || c.cfg.Metadata.Name != cfg.Metadata.Name {
			continue
		}
		if c.cfg.Metadata.Attempt == cfg.Metadata.Attempt && c.sandbox == s {
			r.mu.Unlock()
			return c.id, nil // a retry gets the same container
		}
		if c.state != runtimeapi.ContainerState_CONTAINER_EXITED {
			r.violateLocked("container %s of pod %s created while %s lives", cfg.Metadata.Name, s.cfg.Metadata.Name, c.id)
		}
		if c.cfg.Metadata.Attempt >= cfg.Metadata.Attempt {
			r.violateLocked("attempt of container %s of pod %s fell from %d to %d", cfg.Metadata.Name, s.cfg.Metadata.Name, c.cfg.Metadata.Attempt, cfg.Metadata.Attempt)
		}
	}
	c := &container{
		id: r.idLocked("container"), sandbox: s, cfg: cfg, created: time.Now(), exited: make(chan struct{}), limits: cfg.Linux.GetResources(),
		state: runtimeapi.ContainerState_CONTAINER_CREATED,
	}
	if r.Behave != nil {
		c.behaviour = r.Behave(cfg)
	}
	r.containers[c.id], s.containers[c.id] = c, c
	r.changedLocked("created", s, c)
	r.tellLocked(s, c.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.mu.Unlock()
	return c.id, r.end("CreateContainer", cfg.Metadata.Name)
}

// StartContainer starts the process.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	if err := r.begin(ctx, "StartContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return status.Errorf(codes.FailedPrecondition, "container %q is %s, not created", id, c.state)
	}
	if err := c.behaviour.StartErr; err != nil {
		return err
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now()
	r.changedLocked("started", c.sandbox, c)
	if d := c.behaviour.RunFor; d > 0 {
		c.timer = time.AfterFunc(d, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.exitLocked(c, c.behaviour.ExitCode)
		})
	}
	r.tellLocked(c.sandbox, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return r.end("StartContainer", id)
}

// StopContainer sends the stop signal, and kills after the timeout. A container that does not exist
// counts as stopped.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	if err := r.begin(ctx, "StopContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	c := r.containers[id]
	if c == nil {
		r.mu.Unlock()
		return r.end("StopContainer", id)
	}
	switch {
	case c.state == runtimeapi.ContainerState_CONTAINER_CREATED && r.KeepCreated:
		r.mu.Unlock()
		return r.end("StopContainer", id)
	case c.state == runtimeapi.ContainerState_CONTAINER_CREATED:
		r.exitLocked(c, 137)
	case !c.behaviour.IgnoreTerm && timeout > 0:
		r.exitLocked(c, c.behaviour.TermCode)
	}
	r.mu.Unlock()
	t := time.NewTimer(time.Duration(timeout) * time.Second)
	defer t.Stop()
	select {
	case <-c.exited:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-t.C:
		r.Kill(id, 137)
	}
	return r.end("StopContainer", id)
}

// RemoveContainer removes a container, killing it first.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	if err := r.begin(ctx, "RemoveContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exitLocked(c, 137)
		r.dropLocked(c)
		r.tellLocked(c.sandbox, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return r.end("RemoveContainer", id)
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if err := r.begin(ctx, "ListContainers", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.Container
	for _, c := range r.inLocked(nil) {
		if f.GetId() != "" && f.Id != c.id || f.GetPodSandboxId() != "" && f.PodSandboxId != c.sandbox.id ||
			f.GetState() != nil && f.State.State != c.state || !selects(f.GetLabelSelector(), c.cfg.Labels) {
			continue
		}
		st := c.status()
		out = append(out, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: st.Metadata, Image: st.Image, ImageRef: st.ImageRef, State: st.State,
			CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations,
		})
	}
	return out, nil
}

// ContainerStatus returns one container.
func (r *Runtime) ContainerStatus(ctx context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if err := r.begin(ctx, "ContainerStatus", id); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.status()}, nil
}

// UpdateContainerResources changes the recorded resources of a container that exists; zero fields
// leave what is there.
func (r *Runtime) UpdateContainerResources(ctx context.Context, id string, res *runtimeapi.ContainerResources) error {
	if err := r.begin(ctx, "UpdateContainerResources", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	linux := res.GetLinux()
	next := &runtimeapi.LinuxContainerResources{
		CpuQuota: cmp.Or(linux.GetCpuQuota(), c.limits.GetCpuQuota()), CpuPeriod: cmp.Or(linux.GetCpuPeriod(), c.limits.GetCpuPeriod()),
		CpuShares:          cmp.Or(linux.GetCpuShares(), c.limits.GetCpuShares()),
		MemoryLimitInBytes: cmp.Or(linux.GetMemoryLimitInBytes(), c.limits.GetMemoryLimitInBytes()),
	}
	c.limits = next
	return nil
}

// Resources are the limits that a container has.
func (r *Runtime) Resources(id string) *runtimeapi.LinuxContainerResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		return c.limits
	}
	return nil
}

// ExecSync returns what Exec returns; without it, every command succeeds.
func (r *Runtime) ExecSync(ctx context.Context, id string, cmd []string, _ time.Duration) ([]byte, []byte, error) {
	if err := r.begin(ctx, "ExecSync", id); err != nil {
		return nil, nil, err
	}
	if err := r.running(id); err != nil {
		return nil, nil, err
	}
	if r.Exec == nil {
		return nil, nil, nil
	}
	out, code, err := r.Exec(id, cmd)
	if err == nil && code != 0 {
		err = utilexec.CodeExitError{Err: status.Errorf(codes.Unknown, "command exited with %d", code), Code: code}
	}
	return out, nil, err
}

// running returns an error that says why no command can run in a container.
func (r *Runtime) running(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	switch {
	case c == nil && r.Exec != nil:
		return nil // Exec may know the answer
	case c == nil:
		return notFound("container", id)
	case c.state != runtimeapi.ContainerState_CONTAINER_RUNNING:
		return status.Errorf(codes.FailedPrecondition, "container %q is not running", id)
	default:
		return nil
	}
}

// ExecURL returns an address that nobody listens on.
func (r *Runtime) ExecURL(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return &runtimeapi.ExecResponse{Url: "http://127.0.0.1:1/exec/" + req.ContainerId}, r.begin(ctx, "Exec", req.ContainerId)
}

// Attach returns an address that nobody listens on.
func (r *Runtime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return &runtimeapi.AttachResponse{Url: "http://127.0.0.1:1/attach/" + req.ContainerId}, r.begin(ctx, "Attach", req.ContainerId)
}

// ReopenContainerLog does nothing.
func (r *Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	return r.begin(ctx, "ReopenContainerLog", id)
}
