package cri

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
	"wherry.dev/internal/mount"
	"wherry.dev/internal/oci"
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

// openWatch opens the conmon of a container. It returns nil if conmon has exited or there is none
// to watch.
func openWatch(c *container) (*process, error) {
	if c.current().Refused != "" {
		return nil, nil
	}
	pid, err := oci.ReadPID(c.bundle.MonitorPIDFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return openMonitor(pid, c.id)
}

// watch waits in the background for a container to exit. conmon writes the exit file once the log
// is complete, and then exits; its exit is the event. Closing the server ends the watch, not the
// container.
func (s *Server) watch(ctx context.Context, c *container, monitor *process) {
	ctx = trace.WithPod(context.WithoutCancel(ctx), s.uidOf(c))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("container", c.id))
	s.work.Go(func() {
		if c.current().Refused != "" {
			select {
			case <-c.gaveUp:
			case <-s.ctx.Done():
				return
			}
		} else if monitor != nil && !s.waitFor(monitor) {
			return // the server is closing
		}
		s.finish(ctx, c)
	})
}

// waitFor waits until the process has exited. It returns false if the server closes first.
func (s *Server) waitFor(p *process) bool {
	stop := context.AfterFunc(s.ctx, func() { _ = p.close() })
	err := p.wait()
	if !stop() {
		return false
	}
	if cerr := p.close(); err == nil {
		err = cerr
	}
	if err != nil {
		klog.ErrorS(err, "Waiting for a process")
	}
	return err == nil
}

// finish reports that a container has exited, records it, and then releases what the container
// held. Reporting comes first: until our record is written, conmon's exit file serves as the
// record.
func (s *Server) finish(ctx context.Context, c *container) {
	log := klog.FromContext(ctx)
	end, err := s.readExit(ctx, c)
	if err != nil {
		log.Error(err, "Finding out how the container ended")
	}
	failpoint("exit-read")
	c.end(end)
	if b := s.sandboxOf(c); b != nil {
		s.emit(c.id, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	switch err := c.save(); {
	case errors.Is(err, unix.ENOSPC):
		log.Info("There is no room to record the container's end; its monitor's exit file still has it", "reason", err.Error())
	case err != nil:
		log.Error(err, "The container's end is not on disk")
	}
	failpoint("exit-recorded")
	close(c.exited)
	c.uses.Wait()
	if err := s.releaseContainer(ctx, c); err != nil {
		log.Error(err, "Cleaning up after the container; its removal tries again")
	}
	close(c.cleaned)
}

// giveUp lets a refused container become EXITED.
func (c *container) giveUp() { c.given.Do(func() { close(c.gaveUp) }) }

// end sets the status of a container that has exited. File timestamps come from a clock that is
// behind by up to one kernel tick, so the times are clamped: a container that exits at once must
// not have ended before it started.
func (c *container) end(e ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.EndedAt = max(nanos(e.at), c.rec.CreatedAt, c.status.StartedAt)
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
func (s *Server) readExit(ctx context.Context, c *container) (end ending, err error) {
	_, span := trace.Start(ctx, "cri: container exit")
	defer func() { _ = trace.End(span, err) }()
	if why := c.current().Refused; why != "" {
		return ending{at: time.Now(), code: startExit, reason: reasonStart, message: why}, nil
	}
	end, err = readExitFile(c.bundle.ExitFile())
	if err != nil {
		end = ending{at: time.Now(), code: unknownExit, reason: reasonUnknown,
			message: "the container's monitor (conmon) ended before it could report; the exit code is not known"}
		switch {
		case c.rec.Boot != s.boot:
			end.message = "the machine was restarted while the container was there; the exit code is not known"
		case !errors.Is(err, os.ErrNotExist):
			end.message = err.Error()
		}
		return end, errors.Join(s.killFirst(c), s.killRest(c))
	}
	if end.code != 0 {
		if kills, err := cgroup.OOMKills(c.rec.Cgroup); err == nil && kills > 0 {
			end.reason = reasonOOM
		}
	}
	if c.config().GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_CONTAINER {
		return end, nil // the kernel has killed everything in its PID namespace
	}
	return end, s.killRest(c)
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
func (s *Server) killRest(c *container) error {
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
func (s *Server) killFirst(c *container) error {
	st := c.current()
	if st.PID == 0 {
		return nil
	}
	p, err := openStarted(st.PID, st.PIDStart)
	if err != nil || p == nil {
		return err
	}
	defer func() { _ = p.close() }()
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.wait()
}

// releaseContainer releases what a container without processes holds. It keeps the record, the
// status and the writable layer. It can be repeated.
func (s *Server) releaseContainer(ctx context.Context, c *container) (err error) {
	ctx, span := trace.Start(ctx, "cri: release container")
	defer func() { _ = trace.End(span, err) }()
	if err := errors.Join(c.releaseVolumes(), mount.Unmount(c.rootfs())); err != nil {
		return err
	}
	failpoint("release-mounts")
	if err := c.runtime.Delete(ctx, c.bundle); err != nil {
		return err
	}
	failpoint("release-runtime")
	return cgroup.Remove(c.rec.Cgroup)
}
