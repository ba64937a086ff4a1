package cri

import (
	"context"
	"fmt"
	"io"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/stream"
	"wherry.dev/internal/trace"
)

// streamRuntime is what the streaming server calls once a client has come to the URL that it was given.
type streamRuntime struct{ s *Server }

// Exec runs a command with the client's streams.
func (r streamRuntime) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := r.s.container(id)
	if err != nil {
		return err
	}
	code, err := c.Exec(trace.WithPod(ctx, r.s.uidOf(c)), cmd, in, out, errOut, tty, resize)
	if err != nil {
		return fmt.Errorf("exec in container %s: %w", id, err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// Attach connects the client to the streams of the container's first process. It ends with the
// container or the client.
func (r streamRuntime) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := r.s.container(id)
	if err != nil {
		return err
	}
	if err := c.Attach(trace.WithPod(ctx, r.s.uidOf(c)), in, out, errOut, tty, resize); err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	return nil
}

// PortForward connects the client to a port of the pod. It ends when both directions have ended, or the
// client has disconnected.
func (r streamRuntime) PortForward(ctx context.Context, id string, port int32, client io.ReadWriteCloser) (err error) {
	b, err := r.s.sandbox(id)
	if err != nil {
		return err
	}
	ctx, span := trace.Start(trace.WithPod(ctx, b.UID()), "cri: port-forward")
	defer func() { _ = trace.End(span, err) }()
	defer func() { _ = client.Close() }()
	if !b.Ready() {
		return crierror.Precondition("sandbox %s is not ready", b.ID)
	}
	conn, err := b.Dial(ctx, port)
	if err != nil {
		return err
	}
	return stream.Relay(ctx, client, conn)
}

// Exec returns the URL at which a client runs a command.
func (s *Server) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	c, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	req.ContainerId = c.ID
	return s.stream.GetExec(req)
}

// Attach returns the URL at which a client attaches to a container.
func (s *Server) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	c, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	req.ContainerId = c.ID
	return s.stream.GetAttach(req)
}

// PortForward returns the URL at which a client connects to ports of a pod.
func (s *Server) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	b, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !b.Ready() {
		return nil, crierror.Precondition("sandbox %s is not ready", b.ID)
	}
	req.PodSandboxId = b.ID
	return s.stream.GetPortForward(req)
}
