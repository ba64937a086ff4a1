package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ReopenContainerLog has conmon write to a new file at the log's path, after a
// rotation has moved the old one away. It returns once the file is there.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, precondition("container %s is not running", c.id)
	}
	if c.rec.Log == "" {
		return nil, precondition("container %s has no log", c.id)
	}
	if err := c.reopenLog(ctx); err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", c.id, err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

func (c *container) reopenLog(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	if err := w.Add(filepath.Dir(c.rec.Log)); err != nil {
		return err
	}
	if err := c.control("2 0 0\n"); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(c.rec.Log); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		select {
		case <-w.Events:
		case err := <-w.Errors:
			return err
		case <-c.exited:
			return errors.New("the container has ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// control writes a line to conmon's control FIFO; without a reader there is no conmon.
func (c *container) control(line string) error {
	fd, err := unix.Open(c.bundle.ControlFIFO(), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the control FIFO of conmon: %w", err)
	}
	f := os.NewFile(uintptr(fd), c.bundle.ControlFIFO())
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
