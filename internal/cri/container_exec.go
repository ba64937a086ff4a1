package cri

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// execOutputLimit is what ExecSync keeps of each stream, as containerd does: the
// answer must fit into a gRPC message.
const execOutputLimit = 16 << 20

// drainWait is how long the output of a finished command is still read while
// something that it left behind keeps it open.
const drainWait = time.Second

// readSpec reads the container's spec. It returns nil if the spec is gone.
func (c *container) readSpec() *specs.Spec {
	doc, err := os.ReadFile(filepath.Join(c.bundle.Dir, "config.json"))
	if err != nil {
		return nil
	}
	var spec specs.Spec
	if json.Unmarshal(doc, &spec) != nil {
		return nil
	}
	return &spec
}

// execProcess returns the process for a command in the container. It has the settings of the
// container's first process.
func (c *container) execProcess(args []string, tty bool) (specs.Process, error) {
	spec := c.readSpec()
	if spec == nil || spec.Process == nil {
		return specs.Process{}, errors.New("the container's config.json cannot be read")
	}
	p := *spec.Process
	p.Args, p.Terminal, p.ConsoleSize = args, tty, nil
	if tty {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}

// beginExec registers a command, so that the container is not cleaned up under it.
func (c *container) beginExec() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.status.state(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return precondition("container %s is %s, not running", c.id, stateName(st))
	}
	c.uses.Add(1)
	return nil
}

// ExecSync runs a command and returns its output and exit code.
func (s *Server) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if len(req.GetCmd()) == 0 {
		return nil, invalid("no command given")
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	resp, err := s.execSync(ctx, c, req)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", c.id, err)
	}
	return resp, nil
}

func (s *Server) execSync(ctx context.Context, c *container, req *runtimeapi.ExecSyncRequest) (_ *runtimeapi.ExecSyncResponse, err error) {
	ctx, span := trace.Start(ctx, "cri: exec")
	defer func() { _ = trace.End(span, err) }()
	if err := c.beginExec(); err != nil {
		return nil, err
	}
	defer c.uses.Done()
	if t := req.GetTimeout(); t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(t)*time.Second, &codedError{codes.DeadlineExceeded,
			fmt.Errorf("command %q timed out after %ds", req.GetCmd(), t)})
		defer cancel()
	}
	process, err := c.execProcess(req.GetCmd(), false)
	if err != nil {
		return nil, err
	}
	stdout, err := newCapture(execOutputLimit)
	if err != nil {
		return nil, err
	}
	defer stdout.close()
	stderr, err := newCapture(execOutputLimit)
	if err != nil {
		return nil, err
	}
	defer stderr.close()
	code, err := c.runtime.Run(ctx, oci.ExecOptions{
		ID: c.id, Cgroup: c.rec.Cgroup, Dir: c.execDir(), Process: process, Stdout: stdout.w, Stderr: stderr.w,
	})
	out, errOut := stdout.finish(), stderr.finish()
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(code)}, nil
}

func (c *container) execDir() string { return filepath.Join(c.bundle.Dir, "exec-"+newID()[:16]) }

// capture collects what is written to a pipe, up to a limit. It reads the rest and drops it, so
// that the writer never blocks.
type capture struct {
	r, w *os.File
	buf  bytes.Buffer
	done chan struct{}
}

func newCapture(limit int) (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &capture{r: r, w: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		out := &output{f: r}
		// An error means the end of the pipe, or that close has closed it.
		if _, err := io.Copy(&c.buf, io.LimitReader(out, int64(limit))); err == nil {
			_, _ = io.Copy(io.Discard, out)
		}
	}()
	return c, nil
}

// finish returns what was written. If a background process still holds the pipe open, it waits
// only a little.
func (c *capture) finish() []byte {
	_ = c.w.Close()
	_ = c.r.SetReadDeadline(time.Now().Add(drainWait))
	<-c.done
	return c.buf.Bytes()
}

func (c *capture) close() {
	_ = c.w.Close()
	_ = c.r.Close()
	<-c.done
}
