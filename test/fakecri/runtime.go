package fakecri

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Behaviour says how a container's process behaves.
type Behaviour struct {
	// RunFor is how long the process runs before it ends by itself; 0 runs until it is stopped.
	RunFor time.Duration
	// ExitCode is its exit code when it ends by itself.
	ExitCode int32
	// IgnoreTerm makes it ignore the stop signal and run until it is killed.
	IgnoreTerm bool
	// TermCode is the exit code when it obeys the stop signal.
	TermCode int32
	// StartErr makes the start fail.
	StartErr error
}

// Change is one thing that happened.
type Change struct {
	// What happened: created, started, exited or removed; for a sandbox made, stopped
	// or removed, and ID is empty.
	What    string
	UID     string
	Sandbox string
	ID      string
	Name    string
	Attempt uint32
	Code    int32
}

// Runtime is the fake. The zero value of each hook is "no delay, no error, runs
// until stopped with exit code 0".
type Runtime struct {
	// Behave decides how a container behaves.
	Behave func(cfg *runtimeapi.ContainerConfig) Behaviour
	// Delay returns how long a call takes, by its name (RunPodSandbox, PullImage …).
	Delay func(call string) time.Duration
	// Fail makes a call fail before it has any effect; FailAfter, after its effect.
	Fail, FailAfter func(call, what string) error
	// DropEvent loses an event.
	DropEvent func() bool
	// NoEvents makes this a runtime without GetContainerEvents.
	NoEvents bool
	// EndEvents, if it returns true, ends the stream of events as soon as it is there. CRI-O's
	// default is that.
	EndEvents func() bool
	// Plug is how long a sandbox is already listed as ready, without an address, while it is made.
	// Docker's are.
	Plug time.Duration
	// Exec answers ExecSync.
	Exec func(id string, cmd []string) (stdout []byte, code int, err error)
	// NotReady is the reason why the network is not ready; empty if it is.
	NotReady string
	// KeepCreated: StopContainer leaves a container that was never started as it is,
	// as containerd's does.
	KeepCreated bool
	// Authorize, if not nil, is the registry's answer to a pull with these credentials.
	Authorize func(image string, auth *runtimeapi.AuthConfig) error
	// Handlers are the runtime handlers besides the default one; others are refused.
	Handlers []string
	// OnChange is told everything that happens to sandboxes and containers, in order. It must
	// neither block nor call the runtime.
	OnChange func(Change)

	mu         sync.Mutex
	next       int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	registry   map[string]bool
	listeners  map[chan *runtimeapi.ContainerEventResponse]bool
	violations []string
	calls      map[string]int
}

type sandbox struct {
	id      string
	cfg     *runtimeapi.PodSandboxConfig
	ready   bool
	created time.Time
	ip      string
	handler string
	// containers by ID
	containers map[string]*container
}

type container struct {
	id        string
	sandbox   *sandbox
	cfg       *runtimeapi.ContainerConfig
	state     runtimeapi.ContainerState
	created   time.Time
	started   time.Time
	finished  time.Time
	code      int32
	reason    string
	behaviour Behaviour
	limits    *runtimeapi.LinuxContainerResources
	exited    chan struct{}
	timer     *time.Timer
}

// New returns a runtime that has the given images, and a registry with them.
func New(images ...string) *Runtime {
	r := &Runtime{
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, images: map[string]*runtimeapi.Image{},
		registry: map[string]bool{}, listeners: map[chan *runtimeapi.ContainerEventResponse]bool{}, calls: map[string]int{},
	}
	for _, i := range images {
		r.AddImage(i)
	}
	return r
}

// Violations lists what the kubelet did wrong.
func (r *Runtime) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

// Calls returns how often a call was made.
func (r *Runtime) Calls(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[name]
}

// Live returns the IDs of the live containers of that name in pods of that UID;
// empty strings match all.
func (r *Runtime) Live(uid, name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for id, c := range r.containers {
		if c.state != runtimeapi.ContainerState_CONTAINER_EXITED &&
			(uid == "" || c.sandbox.cfg.Metadata.Uid == uid) && (name == "" || c.cfg.Metadata.Name == name) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Sandboxes returns the number of sandboxes.
func (r *Runtime) Sandboxes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sandboxes)
}

// Containers returns the number of containers.
func (r *Runtime) Containers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.containers)
}

// Config returns the configuration that a container was created with.
func (r *Runtime) Config(id string) *runtimeapi.ContainerConfig {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		return c.cfg
	}
	return nil
}

// At returns the ID of the running container of that name at an address (the node's own is empty)
// or in the pod of a UID.
func (r *Runtime) At(where, name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.inLocked(nil) {
		if (c.sandbox.ip == where || c.sandbox.cfg.Metadata.Uid == where) && c.cfg.Metadata.Name == name && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return c.id
		}
	}
	return ""
}

// Kill ends a container's process from outside.
func (r *Runtime) Kill(id string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exitLocked(c, code)
	}
}

// KillSandbox makes a sandbox die, with everything in it.
func (r *Runtime) KillSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.stopSandboxLocked(s)
	}
}

// Drop removes a container from outside, without an event.
func (r *Runtime) Drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exitLocked(c, 137)
		r.dropLocked(c)
	}
}

func (r *Runtime) dropLocked(c *container) {
	delete(r.containers, c.id)
	delete(c.sandbox.containers, c.id)
	r.changedLocked("removed", c.sandbox, c)
}

// SandboxIDs lists the sandboxes of a pod.
func (r *Runtime) SandboxIDs(uid string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for id, s := range r.sandboxes {
		if uid == "" || s.cfg.Metadata.Uid == uid {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// begin counts a call, waits for its delay, and fails if the call is to fail.
func (r *Runtime) begin(ctx context.Context, call, what string) error {
	r.mu.Lock()
	r.calls[call]++
	r.mu.Unlock()
	if r.Delay != nil {
		if d := r.Delay(call); d > 0 {
			if err := sleep(ctx, d); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if r.Fail != nil {
		return r.Fail(call, what)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// end drops the answer of a call that is to lose it.
func (r *Runtime) end(call, what string) error {
	if r.FailAfter != nil {
		return r.FailAfter(call, what)
	}
	return nil
}

func (r *Runtime) idLocked(kind string) string {
	r.next++
	return fmt.Sprintf("%s-%06d", kind, r.next)
}

func (r *Runtime) violateLocked(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// exitLocked makes a container's process exit.
func (r *Runtime) exitLocked(c *container, code int32) {
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	reason := "Error"
	if code == 0 {
		reason = "Completed"
	}
	c.state, c.finished, c.code, c.reason = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now(), code, reason
	close(c.exited)
	r.changedLocked("exited", c.sandbox, c)
	r.tellLocked(c.sandbox, c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (r *Runtime) stopSandboxLocked(s *sandbox) {
	for _, c := range r.inLocked(s) {
		r.exitLocked(c, 137)
	}
	if s.ready {
		s.ready = false
		r.changedLocked("stopped", s, nil)
		r.tellLocked(s, s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// inLocked returns the containers of a sandbox, or of all sandboxes, ordered by ID.
func (r *Runtime) inLocked(s *sandbox) []*container {
	of := r.containers
	if s != nil {
		of = s.containers
	}
	return slices.SortedFunc(maps.Values(of), func(a, b *container) int { return strings.Compare(a.id, b.id) })
}

func (r *Runtime) changedLocked(what string, s *sandbox, c *container) {
	if r.OnChange == nil {
		return
	}
	ch := Change{What: what, UID: s.cfg.Metadata.Uid, Sandbox: s.id, Attempt: s.cfg.Metadata.Attempt}
	if c != nil {
		ch.ID, ch.Name, ch.Attempt, ch.Code = c.id, c.cfg.Metadata.Name, c.cfg.Metadata.Attempt, c.code
	}
	r.OnChange(ch)
}

// tellLocked sends an event to the listeners; one that cannot take it at once loses it.
func (r *Runtime) tellLocked(s *sandbox, id string, kind runtimeapi.ContainerEventType) {
	if r.DropEvent != nil && r.DropEvent() {
		return
	}
	ev := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: s.status(),
	}
	for ch := range r.listeners {
		select {
		case ch <- ev:
		default:
		}
	}
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", kind, id)
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	st := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if s.ready {
		st = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: s.cfg.Metadata, State: st, CreatedAt: s.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip}, Labels: s.cfg.Labels, Annotations: s.cfg.Annotations,
		RuntimeHandler: s.handler,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
}

func (c *container) status() *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.cfg.Metadata, State: c.state, CreatedAt: c.created.UnixNano(), Image: c.cfg.Image,
		ImageRef: c.cfg.Image.Image, ImageId: c.cfg.Image.Image, Labels: c.cfg.Labels, Annotations: c.cfg.Annotations, Mounts: c.cfg.Mounts,
		LogPath: c.sandbox.cfg.LogDirectory + "/" + c.cfg.LogPath, ExitCode: c.code, Reason: c.reason,
	}
	if !c.started.IsZero() {
		st.StartedAt = c.started.UnixNano()
	}
	if !c.finished.IsZero() {
		st.FinishedAt = c.finished.UnixNano()
	}
	return st
}
