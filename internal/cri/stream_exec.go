package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// Exec runs a command with the client's streams (the streaming server calls it).
func (s *Server) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) (err error) {
	c, err := s.findContainer(id)
	if err != nil {
		return err
	}
	ctx, span := trace.Start(trace.WithPod(ctx, s.uidOf(c)), "cri: exec stream")
	defer func() { _ = trace.End(span, err) }()
	if err := c.beginExec(); err != nil {
		return err
	}
	defer c.uses.Done()
	process, err := c.execProcess(cmd, tty)
	if err != nil {
		return err
	}
	o := oci.ExecOptions{ID: c.id, Cgroup: c.rec.Cgroup, Dir: c.execDir(), Process: process}
	var code int
	if tty {
		code, err = c.execTerminal(ctx, o, in, out, resize)
	} else {
		code, err = c.execPipes(ctx, o, in, out, errOut)
	}
	if err != nil {
		return fmt.Errorf("exec in container %s: %w", id, err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// execPipes runs a command connected to the client by pipes.
func (c *container) execPipes(ctx context.Context, o oci.ExecOptions, in io.Reader, out, errOut io.Writer) (int, error) {
	var pipes pipeSet
	defer pipes.closeAll()
	var err error
	if in != nil {
		if o.Stdin, err = pipes.from(in); err != nil {
			return 0, err
		}
	}
	if out != nil {
		if o.Stdout, err = pipes.to(out); err != nil {
			return 0, err
		}
	}
	if errOut != nil {
		if o.Stderr, err = pipes.to(errOut); err != nil {
			return 0, err
		}
	}
	code, err := c.runtime.Run(ctx, o)
	pipes.drain()
	return code, err
}

// execTerminal runs a command in a terminal.
func (c *container) execTerminal(ctx context.Context, o oci.ExecOptions, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) (int, error) {
	console, err := newConsole(c.runtime, &o)
	if err != nil {
		return 0, err
	}
	defer console.close()
	e, err := c.runtime.Exec(o)
	if err != nil {
		return 0, err
	}
	console.started()
	// The command must have exited before this returns, whatever happens to the client.
	stop := context.AfterFunc(ctx, func() { _ = e.Kill() })
	defer stop()
	type result struct {
		code int
		err  error
	}
	done := make(chan result, 1)
	go func() {
		code, err := e.Wait()
		console.unblock() // it may have failed before it sent a terminal
		done <- result{code, err}
	}()
	pty, err := console.accept()
	if err != nil {
		r := <-done
		if r.err != nil {
			return r.code, r.err
		}
		return r.code, err
	}
	defer func() { _ = pty.Close() }()
	resized := followResize(resize, func(size remotecommand.TerminalSize) error { return setSize(pty, size) })
	defer resized()
	if in != nil {
		go func() { _, _ = io.Copy(pty, in) }() // ends with the client's stream, at the latest
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if out != nil {
			_, _ = io.Copy(out, &output{f: pty}) // EIO is a terminal's end of file
		}
	}()
	r := <-done
	if out != nil {
		_ = pty.SetReadDeadline(deadline(drainWait))
	}
	<-copied
	if err := ctx.Err(); err != nil && r.err == nil {
		return r.code, err
	}
	return r.code, r.err
}

func setSize(pty *os.File, size remotecommand.TerminalSize) error {
	raw, err := pty.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	err = raw.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
	return errors.Join(err, ierr)
}

// followResize applies the client's sizes until stop is called.
func followResize(sizes <-chan remotecommand.TerminalSize, apply func(remotecommand.TerminalSize) error) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case size, ok := <-sizes:
				if !ok {
					return
				}
				_ = apply(size) // a size that cannot be set is no reason to kill the command
			}
		}
	}()
	return func() { close(quit); <-done }
}
