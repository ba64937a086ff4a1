package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/trace"
)

// Why a container ended, in Kubernetes' words.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOM       = "OOMKilled"
	reasonUnknown   = "ContainerStatusUnknown"
	reasonStart     = "StartError"
)

// unknownExit is the exit code of a container whose exit nobody saw.
const unknownExit = 137

// startExit is the exit code of a container that could not be started.
const startExit = 128

// OpenMonitor opens its conmon. It returns nil if conmon has exited or there is none.
func (c *Container) OpenMonitor() (*monitor.Process, error) {
	if c.current().Refused != "" {
		return nil, nil
	}
	return monitor.OfBundle(c.bundle)
}

// WaitEnd waits until it has ended: conmon writes the exit file once the log is complete, and then
// exits; its exit is the event. It returns false if ctx ends first.
func (c *Container) WaitEnd(ctx context.Context, monitor *monitor.Process) bool {
	if c.current().Refused != "" {
		select {
		case <-c.gaveUp:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return monitor == nil || monitor.WaitUntil(ctx)
}

// Finish reports that it has exited, by calling ended, records that, and then releases what it held.
// Reporting comes first: until our record is written, conmon's exit file serves as the record.
func (c *Container) Finish(ctx context.Context, ended func()) {
	log := klog.FromContext(ctx)
	end, err := c.readExit(ctx)
	if err != nil {
		log.Error(err, "Cannot read the container's exit status")
	}
	failpoint.At("exit-read")
	c.end(end)
	ended()
	switch err := c.save(); {
	case errors.Is(err, unix.ENOSPC):
		log.Info("No disk space to record the container's exit; its monitor's exit file still has it", "reason", err.Error())
	case err != nil:
		log.Error(err, "Cannot record the container's exit")
	}
	failpoint.At("exit-recorded")
	close(c.exited)
	c.uses.Wait()
	if err := c.release(ctx); err != nil {
		log.Error(err, "Cannot clean up after the container; its removal tries again")
	}
	close(c.cleaned)
}

// giveUp lets a refused container become EXITED.
func (c *Container) giveUp() { c.given.Do(func() { close(c.gaveUp) }) }

// end sets the status of a container that has exited. File timestamps come from a clock that is
// behind by up to one kernel tick, so the times are clamped: a container that exits at once must
// not have ended before it started.
func (c *Container) end(e ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.EndedAt = max(e.at.UnixNano(), c.rec.CreatedAt, c.status.StartedAt)
	c.status.ExitCode, c.status.Reason, c.status.Message = e.code, e.reason, e.message
}

// ending is how a container ended.
type ending struct {
	at      time.Time
	code    int32
	reason  string
	message string
}

// readExit reads conmon's exit file. If there is none, conmon was killed: the container's output
// goes nowhere and its exit code will never be known, so the container is killed, too.
func (c *Container) readExit(ctx context.Context) (end ending, err error) {
	_, span := trace.Start(ctx, "cri: container exit")
	defer func() { _ = trace.End(span, err) }()
	if why := c.current().Refused; why != "" {
		return ending{at: time.Now(), code: startExit, reason: reasonStart, message: why}, nil
	}
	end, err = readExitFile(c.bundle.ExitFile())
	if err != nil {
		end = ending{at: time.Now(), code: unknownExit, reason: reasonUnknown,
			message: "the container's monitor (conmon) exited before it could report; the exit code is unknown"}
		switch {
		case c.rec.Boot != c.env.Boot:
			end.message = "the machine was restarted while the container existed; the exit code is unknown"
		case !errors.Is(err, os.ErrNotExist):
			end.message = err.Error()
		}
		return end, errors.Join(c.killFirst(), c.killRest())
	}
	if end.code != 0 {
		if kills, err := cgroup.OOMKills(c.rec.Cgroup); err == nil && kills > 0 {
			end.reason = reasonOOM
		}
	}
	if c.Config().GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_CONTAINER {
		return end, nil // the kernel has killed everything in its PID namespace
	}
	return end, c.killRest()
}

// readExitFile reads the exit code; the file's modification time is when the container exited.
func readExitFile(path string) (ending, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return ending{}, err
	}
	code, err := strconv.ParseInt(strings.TrimSpace(string(doc)), 10, 32)
	if err != nil {
		return ending{}, fmt.Errorf("exit file of conmon: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return ending{}, err
	}
	end := ending{at: info.ModTime(), code: int32(code), reason: reasonCompleted}
	if code != 0 {
		end.reason = reasonError
	}
	return end, nil
}

// killRest kills what the container's first process left behind.
func (c *Container) killRest() error {
	if !cgroup.Exists(c.rec.Cgroup) {
		return nil
	}
	pids, err := cgroup.Procs(c.rec.Cgroup)
	if err != nil || len(pids) == 0 {
		return err
	}
	return cgroup.Kill(c.rec.Cgroup)
}

// killFirst kills the container's first process and waits until it is gone.
func (c *Container) killFirst() error {
	st := c.current()
	if st.PID == 0 {
		return nil
	}
	p, err := monitor.Open(st.PID, st.PIDStart)
	if err != nil || p == nil {
		return err
	}
	defer func() { _ = p.Close() }()
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait()
}

// release releases what a container without processes holds. It keeps the record, the
// status and the writable layer. It can be repeated.
func (c *Container) release(ctx context.Context) (err error) {
	ctx, span := trace.Start(ctx, "cri: release container")
	defer func() { _ = trace.End(span, err) }()
	if err := errors.Join(c.releaseVolumes(), mount.Unmount(c.rootfs())); err != nil {
		return err
	}
	failpoint.At("release-mounts")
	if err := c.runtime.Delete(ctx, c.bundle); err != nil {
		return err
	}
	failpoint.At("release-runtime")
	return cgroup.Remove(c.rec.Cgroup)
}
