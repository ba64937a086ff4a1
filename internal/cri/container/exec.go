package container

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/stream"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// execOutputLimit is what ExecSync keeps of each stream, as containerd does: the
// answer must fit into a gRPC message.
const execOutputLimit = 16 << 20

// readSpec reads the container's spec. It returns nil if the spec is gone.
func (c *Container) readSpec() *specs.Spec {
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
func (c *Container) execProcess(args []string, tty bool) (specs.Process, error) {
	spec := c.readSpec()
	if spec == nil || spec.Process == nil {
		return specs.Process{}, errors.New("cannot read the container's config.json")
	}
	p := *spec.Process
	p.Args, p.Terminal, p.ConsoleSize = args, tty, nil
	if tty {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}

// beginExec registers a command, so that the container is not cleaned up under it.
func (c *Container) beginExec() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.status.state(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return crierror.Precondition("container %s is %s, not running", c.ID, stateName(st))
	}
	c.uses.Add(1)
	return nil
}

// ExecSync runs a command and returns its output and exit code. A timeout of 0 is none.
func (c *Container) ExecSync(ctx context.Context, cmd []string, timeout time.Duration) (_ *runtimeapi.ExecSyncResponse, err error) {
	ctx, span := trace.Start(ctx, "cri: exec")
	defer func() { _ = trace.End(span, err) }()
	if err := c.beginExec(); err != nil {
		return nil, err
	}
	defer c.uses.Done()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, crierror.Timeout("command %q timed out after %ds", cmd, timeout/time.Second))
		defer cancel()
	}
	process, err := c.execProcess(cmd, false)
	if err != nil {
		return nil, err
	}
	out, errOut, code, err := stream.RunCaptured(ctx, c.runtime, c.execOptions(process), execOutputLimit)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(code)}, nil
}

// Exec runs a command with the client's streams and returns its exit code.
func (c *Container) Exec(ctx context.Context, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) (code int, err error) {
	ctx, span := trace.Start(ctx, "cri: exec stream")
	defer func() { _ = trace.End(span, err) }()
	if err := c.beginExec(); err != nil {
		return 0, err
	}
	defer c.uses.Done()
	process, err := c.execProcess(cmd, tty)
	if err != nil {
		return 0, err
	}
	if tty {
		return stream.RunTerminal(ctx, c.runtime, c.execOptions(process), in, out, resize)
	}
	return stream.RunPipes(ctx, c.runtime, c.execOptions(process), in, out, errOut)
}

func (c *Container) execOptions(p specs.Process) oci.ExecOptions {
	dir := filepath.Join(c.bundle.Dir, "exec-"+disk.NewID()[:16])
	return oci.ExecOptions{ID: c.ID, Cgroup: c.rec.Cgroup, Dir: dir, Process: p}
}

// Attach connects the client to the streams of its first process. It ends with the container or the
// client.
func (c *Container) Attach(ctx context.Context, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize) (err error) {
	ctx, span := trace.Start(ctx, "cri: attach")
	defer func() { _ = trace.End(span, err) }()
	if !tty {
		sizes = nil
	}
	to := stream.Attachment{
		Socket: c.bundle.AttachSocket(), Leaves: c.bundle.Stdin && (!c.bundle.StdinOnce || c.bundle.Terminal), Sizes: sizes,
		Resize: func(size remotecommand.TerminalSize) error { return c.control.Resize(ctx, size.Height, size.Width) },
	}
	return to.Connect(ctx, in, out, errOut)
}
