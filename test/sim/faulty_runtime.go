package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/api/pods"
)

var (
	errFault = errors.New("fault")
	errDead  = errors.New("this kubelet was killed")
)

// call carries out everything that a kubelet asks of the world: it takes a while; it fails before
// or after it took effect; the kubelet is killed before or after; and when the caller gives up, the
// call takes a moment to return, and may take effect later.
func call[T any](ctx context.Context, n *node, name, what string, effect func(context.Context) (T, error)) (T, error) {
	var none T
	op, _ := ctx.Value(opKey{}).(string)
	l, key := n.life, n.key+op+" "+name+" "+what
	took := l.duration(key, name)
	if err := n.wait(ctx, took/2+1, key); err != nil {
		if ctx.Err() != nil && goesOn(name, took) && l.dice.chance(0.5, key+" goes on") {
			late := context.WithValue(context.WithoutCancel(ctx), lateKey{}, true)
			time.AfterFunc(l.dice.upTo(took, key+" goes on for"), func() { _, _ = effect(late) })
		}
		return none, err
	}
	if l.faulty() && l.dice.chance(0.06, key+" fails") {
		return none, fmt.Errorf("%s: %w", name, errFault)
	}
	if l.faulty() && l.dice.chance(0.001, key+" killed before") {
		n.kill(name + " " + what + " before its effect")
		return none, errDead
	}
	out, err := effect(ctx)
	if err != nil {
		return none, err
	}
	if l.faulty() && l.dice.chance(0.001, key+" killed after") {
		n.kill(name + " " + what + " after its effect")
		return none, errDead
	}
	if err := n.wait(ctx, took-took/2, key); err != nil {
		return none, err
	}
	if l.faulty() && l.dice.chance(0.04, key+" answer lost") {
		return none, fmt.Errorf("%s: answer lost: %w", name, errFault)
	}
	return out, nil
}

// lateKey is the context key that says that nobody waits for the call any more.
type lateKey struct{}

// goesOn reports whether the runtime carries on with a call after nobody waits for its answer any
// more; one that hangs ends with its caller.
func goesOn(call string, took time.Duration) bool {
	makes := call == "RunPodSandbox" || call == "CreateContainer" || call == "StartContainer"
	return makes && took < 3*time.Second
}

// wait lets time pass. A caller that gives up gets its error a moment later.
func (n *node) wait(ctx context.Context, d time.Duration, key string) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.dead:
		return errDead
	case <-ctx.Done():
		linger := time.NewTimer(n.life.dice.upTo(100*time.Millisecond, key+" lingers"))
		defer linger.Stop()
		select {
		case <-linger.C:
		case <-n.dead:
		}
		return ctx.Err()
	}
	select {
	case <-n.dead:
		return errDead
	default:
		return nil
	}
}

// duration returns how long a call takes.
func (l *life) duration(key, name string) time.Duration {
	most := 200 * time.Millisecond
	switch name {
	case "PodSandboxStatus", "ListPodSandbox", "ListContainers", "ContainerStatus", "ImageStatus", "ContainerStats":
		most = 3 * time.Millisecond
	case "PullImage":
		most = 10 * time.Second
	case "RunPodSandbox":
		most = 2 * time.Second
	}
	if l.faulty() && l.dice.chance(0.003, key+" hangs") {
		most = 3 * time.Minute
	}
	return l.dice.upTo(most, key+" takes")
}

// faultyRuntime is the runtime as one life of the kubelet sees it.
type faultyRuntime struct {
	internalapi.RuntimeService
	n *node
}

func (s faultyRuntime) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if b := s.n.life.broken.sandbox; b != nil {
		b(cfg)
	}
	if uid := types.UID(cfg.Metadata.Uid); s.n.life.claims.lacks(uid) {
		s.n.life.hist.fail(fmt.Errorf("the sandbox of %s is made before its devices are prepared", uid))
	}
	if b := s.n.life.broken.handler; b != nil {
		handler = b(handler)
	}
	return call(ctx, s.n, "RunPodSandbox", "", func(ctx context.Context) (string, error) {
		s.n.life.hist.fail(s.n.life.inspectSandbox(cfg, handler))
		return s.RuntimeService.RunPodSandbox(ctx, cfg, handler)
	})
}

func (s faultyRuntime) StopPodSandbox(ctx context.Context, id string) error {
	return s.do(ctx, "StopPodSandbox", id, func(ctx context.Context) error { return s.RuntimeService.StopPodSandbox(ctx, id) })
}

func (s faultyRuntime) RemovePodSandbox(ctx context.Context, id string) error {
	return s.do(ctx, "RemovePodSandbox", id, func(ctx context.Context) error { return s.RuntimeService.RemovePodSandbox(ctx, id) })
}

func (s faultyRuntime) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, s.n, "PodSandboxStatus", id, func(ctx context.Context) (*runtimeapi.PodSandboxStatusResponse, error) {
		return s.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	})
}

func (s faultyRuntime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return call(ctx, s.n, "ListPodSandbox", "", func(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
		return s.RuntimeService.ListPodSandbox(ctx, f)
	})
}

func (s faultyRuntime) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return call(ctx, s.n, "ListContainers", "", func(ctx context.Context) ([]*runtimeapi.Container, error) {
		return s.RuntimeService.ListContainers(ctx, f)
	})
}

func (s faultyRuntime) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, s.n, "ContainerStatus", id, func(ctx context.Context) (*runtimeapi.ContainerStatusResponse, error) {
		return s.RuntimeService.ContainerStatus(ctx, id, verbose)
	})
}

func (s faultyRuntime) CreateContainer(ctx context.Context, sandbox string, cfg *runtimeapi.ContainerConfig, sc *runtimeapi.PodSandboxConfig) (string, error) {
	if b := s.n.life.broken.create; b != nil {
		b(cfg)
	}
	return call(ctx, s.n, "CreateContainer", cfg.Metadata.Name, func(ctx context.Context) (string, error) {
		if ctx.Value(lateKey{}) == nil { // what it depends on may be gone by then
			s.n.life.hist.fail(s.n.life.inspectContainer(cfg, sc.Metadata.Uid))
		}
		return s.RuntimeService.CreateContainer(ctx, sandbox, cfg, sc)
	})
}

func (s faultyRuntime) StartContainer(ctx context.Context, id string) error {
	return s.do(ctx, "StartContainer", id, func(ctx context.Context) error { return s.RuntimeService.StartContainer(ctx, id) })
}

func (s faultyRuntime) StopContainer(ctx context.Context, id string, timeout int64) error {
	return s.do(ctx, "StopContainer", id, func(ctx context.Context) error {
		return s.RuntimeService.StopContainer(ctx, id, timeout)
	})
}

func (s faultyRuntime) RemoveContainer(ctx context.Context, id string) error {
	return s.do(ctx, "RemoveContainer", id, func(ctx context.Context) error { return s.RuntimeService.RemoveContainer(ctx, id) })
}

func (s faultyRuntime) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return call(ctx, s.n, "Status", "", func(ctx context.Context) (*runtimeapi.StatusResponse, error) {
		return s.RuntimeService.Status(ctx, verbose)
	})
}

func (s faultyRuntime) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, s.n, "UpdatePodSandboxResources", "", func(ctx context.Context) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		return s.RuntimeService.UpdatePodSandboxResources(ctx, req)
	})
}

func (s faultyRuntime) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error {
	return s.do(ctx, "UpdateContainerResources", id, func(ctx context.Context) error {
		return s.RuntimeService.UpdateContainerResources(ctx, id, r)
	})
}

// ContainerStats reports that little memory is in use.
func (s faultyRuntime) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	return call(ctx, s.n, "ContainerStats", id, func(context.Context) (*runtimeapi.ContainerStats, error) {
		return &runtimeapi.ContainerStats{Memory: &runtimeapi.MemoryUsage{UsageBytes: &runtimeapi.UInt64Value{Value: 1 << 20}}}, nil
	})
}

// ExecSync does what the commands of hooks and probes say.
func (s faultyRuntime) ExecSync(ctx context.Context, id string, cmd []string, _ time.Duration) (stdout, stderr []byte, err error) {
	l := s.n.life
	err = s.do(ctx, "ExecSync", id+" "+cmd[0], func(context.Context) error {
		if len(l.rt.Live("", "")) == 0 {
			return errors.New("container is not running")
		}
		key := fmt.Sprintf("%d %s %s fails", s.n.number, id, cmd[0])
		if cmd[1] == sick || l.faulty() && l.dice.chance(0.15, key) {
			return utilexec.CodeExitError{Err: errors.New("exited with 1"), Code: 1}
		}
		if cmd[0] == "startup" {
			l.hist.add(Event{What: StartupPassed, ID: id})
		}
		return nil
	})
	return nil, nil, err
}

func (s faultyRuntime) do(ctx context.Context, name, what string, f func(context.Context) error) error {
	_, err := call(ctx, s.n, name, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// faultyImages is the image service as one life of the kubelet sees it.
type faultyImages struct {
	internalapi.ImageManagerService
	n *node
}

func (s faultyImages) ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return call(ctx, s.n, "ImageStatus", spec.Image, func(ctx context.Context) (*runtimeapi.ImageStatusResponse, error) {
		return s.ImageManagerService.ImageStatus(ctx, spec, verbose)
	})
}

func (s faultyImages) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sc *runtimeapi.PodSandboxConfig) (string, error) {
	if b := s.n.life.broken.auth; b != nil && auth != nil {
		b(auth)
	}
	return call(ctx, s.n, "PullImage", spec.Image, func(ctx context.Context) (string, error) {
		s.n.life.hist.fail(s.n.life.inspectPull(spec.Image, auth, sc.Metadata.Uid))
		return s.ImageManagerService.PullImage(ctx, spec, auth, sc)
	})
}

// podUIDs lists the pods that the runtime has.
func podUIDs(list []*runtimeapi.PodSandbox) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		out[s.Labels[pods.LabelPodUID]] = true
	}
	return out
}
