package container

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/trace"
)

// Start starts it, and calls started once that is recorded.
func (c *Container) Start(ctx context.Context, started func()) (err error) {
	ctx, span := trace.Start(ctx, "cri: start container")
	defer func() { _ = trace.End(span, err) }()
	c.op.Lock()
	defer c.op.Unlock()
	if err := c.beginStart(); err != nil {
		return err
	}
	defer c.uses.Done()
	if why := c.current().Refused; why != "" {
		c.giveUp()
		return errors.New(why)
	}
	// Record the intent first: a crash after the start must not leave a running container
	// recorded as not started.
	if err := c.update(func(st *State) { st.Starting = true }); err != nil {
		return err
	}
	failpoint.At("start-intended")
	began := time.Now().UnixNano() // taken before it can exit: it must not have ended before it started
	if err := c.runtime.Start(ctx, c.bundle); err != nil {
		return err
	}
	failpoint.At("start-done")
	if err := c.noteStart(ctx, began); err != nil {
		return err
	}
	failpoint.At("start-recorded")
	started()
	return nil
}

// noteStart records that the container runs. If the container has exited by now, it did start: a
// record that could not be written is then logged, as it is for an exit, and fails nothing.
func (c *Container) noteStart(ctx context.Context, at int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.status
	next.Starting, next.StartedAt = false, at
	if next.EndedAt != 0 {
		next.EndedAt = max(next.EndedAt, at) // see end
	}
	if err := c.saveLocked(next); err != nil {
		if next.EndedAt == 0 {
			return err
		}
		klog.FromContext(ctx).Error(err, "Cannot record the container's start")
	}
	c.status = next
	return nil
}

// beginStart registers the start, so that a container that exits at once is not cleaned up under
// the runtime, which would then report that the start failed.
func (c *Container) beginStart() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.status.state(); st != runtimeapi.ContainerState_CONTAINER_CREATED {
		return crierror.Precondition("it is %s, not created", stateName(st))
	}
	c.uses.Add(1)
	return nil
}

func stateName(st runtimeapi.ContainerState) string {
	switch st {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return "created"
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return "running"
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return "exited"
	}
	return "in an unknown state"
}
