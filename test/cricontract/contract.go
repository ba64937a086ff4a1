// Package cricontract states what the kubelet relies on in a container runtime, as checks over the
// CRI's own interfaces. The fake runtime of the kubelet's tests passes the same checks as the real
// one: what is proved on the fake holds on the node.
package cricontract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Scripts that containers of the checks run, with `sh -c`.
const (
	Ends    = "exit 0"
	Fails   = "exit 3"
	Obeys   = "trap 'exit 7' TERM; touch /ready; while :; do sleep 1 & wait; done"
	Ignores = "trap '' TERM; touch /ready; while :; do sleep 1; done"
	// trapped ends once a container that runs one of the last two has set its trap.
	trapped = "until test -e /ready; do sleep 0.01; done"
)

// Target is a runtime to be checked.
type Target struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	// Image is one that is on the node and has a shell.
	Image string
	// Pod returns the configuration of a new pod, with a UID of its own.
	Pod func() *runtimeapi.PodSandboxConfig
	// Container completes the configuration of a container, which already has a name, an image and
	// a command.
	Container func(*runtimeapi.ContainerConfig)
}

// Check is one thing that the kubelet relies on.
type Check struct {
	Name string
	run  func(c *check)
}

// Run runs the check on a target, with deadlines that only a runtime that hangs would miss.
func (k Check) Run(t testing.TB, target Target) {
	ctx, cancel := context.WithCancel(t.Context())
	c := &check{Target: target, t: t, ctx: ctx, news: make(chan struct{}, 1)}
	var watching sync.WaitGroup
	events, connected := make(chan *runtimeapi.ContainerEventResponse, 1000), make(chan struct{})
	watching.Go(func() {
		for ev := range events {
			c.mu.Lock()
			c.events = append(c.events, ev)
			c.mu.Unlock()
			select {
			case c.news <- struct{}{}:
			default:
			}
		}
	})
	watching.Go(func() {
		defer close(events)
		err := target.Runtime.GetContainerEvents(ctx, events, func(runtimeapi.RuntimeService_GetContainerEventsClient) { close(connected) })
		if ctx.Err() == nil {
			t.Errorf("events ended: %v", err)
		}
	})
	<-connected
	defer watching.Wait()
	defer cancel()
	defer c.clean()
	k.run(c)
}

// clean removes the check's pods.
func (c *check) clean() {
	for _, id := range c.sandboxes {
		if err := errors.Join(c.Runtime.StopPodSandbox(c.ctx, id), c.Runtime.RemovePodSandbox(c.ctx, id)); err != nil {
			c.t.Error(err)
		}
	}
}

// check is a check that is running.
type check struct {
	Target
	t   testing.TB
	ctx context.Context

	sandboxes []string

	news   chan struct{} // signals an event
	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse
}

func (c *check) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// pod runs a sandbox.
func (c *check) pod() (string, *runtimeapi.PodSandboxConfig) {
	c.t.Helper()
	cfg := c.Pod()
	id, err := c.Runtime.RunPodSandbox(c.ctx, cfg, "")
	c.must(err)
	c.sandboxes = append(c.sandboxes, id)
	return id, cfg
}

func (c *check) config(name, script string, attempt uint32) *runtimeapi.ContainerConfig {
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		Command:  []string{"sh", "-c", script},
		Labels:   map[string]string{"name": name}, Annotations: map[string]string{"note": "of " + name},
		LogPath: fmt.Sprintf("%s/%d.log", name, attempt),
	}
	c.Container(cfg)
	return cfg
}

func (c *check) create(sandbox string, pod *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) string {
	c.t.Helper()
	id, err := c.Runtime.CreateContainer(c.ctx, sandbox, cfg, pod)
	c.must(err)
	return id
}

// start runs a container in a pod of its own.
func (c *check) start(script string) (sandbox, id string) {
	c.t.Helper()
	sandbox, pod := c.pod()
	id = c.create(sandbox, pod, c.config("c", script, 0))
	c.must(c.Runtime.StartContainer(c.ctx, id))
	if script == Obeys || script == Ignores {
		_, _, err := c.Runtime.ExecSync(c.ctx, id, []string{"sh", "-c", trapped}, patience)
		c.must(err)
	}
	return sandbox, id
}

func (c *check) status(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	resp, err := c.Runtime.ContainerStatus(c.ctx, id, false)
	c.must(err)
	return resp.Status
}

// patience is how long a check waits for something that must come.
const patience = 30 * time.Second

// until waits for an event after which ok holds.
func (c *check) until(what string, ok func() bool) {
	c.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !ok() {
		select {
		case <-c.news:
		case <-late.C:
			c.t.Fatalf("never: %s", what)
		}
	}
}

func (c *check) exited(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	c.until("exit of "+id, func() bool { return c.status(id).State == runtimeapi.ContainerState_CONTAINER_EXITED })
	return c.status(id)
}

func (c *check) notFound(what string, err error) {
	c.t.Helper()
	if status.Code(err) != codes.NotFound {
		c.t.Errorf("%s: %v, want NotFound", what, err)
	}
}

func (c *check) told(id string, kind runtimeapi.ContainerEventType) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.events, func(e *runtimeapi.ContainerEventResponse) bool {
			return e.ContainerId == id && e.ContainerEventType == kind && e.GetPodSandboxStatus().GetMetadata().GetUid() != ""
		})
	}
}
