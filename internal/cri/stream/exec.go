package stream

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"wherry.dev/internal/oci"
)

// RunPipes runs a command connected to the client by pipes.
func RunPipes(ctx context.Context, r *oci.Runtime, o oci.ExecOptions, in io.Reader, out, errOut io.Writer) (int, error) {
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
	code, err := r.Run(ctx, o)
	pipes.drain()
	return code, err
}

// RunTerminal runs a command in a terminal.
func RunTerminal(ctx context.Context, r *oci.Runtime, o oci.ExecOptions, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) (int, error) {
	console, err := newConsole(r, &o)
	if err != nil {
		return 0, err
	}
	defer console.close()
	e, err := r.Exec(o)
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
		end := <-done
		if end.err != nil {
			return end.code, end.err
		}
		return end.code, err
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
	end := <-done
	if out != nil {
		_ = pty.SetReadDeadline(deadline(drainWait))
	}
	<-copied
	if err := ctx.Err(); err != nil && end.err == nil {
		return end.code, err
	}
	return end.code, end.err
}

// RunCaptured runs a command and returns what it wrote, up to limit bytes of each stream.
func RunCaptured(ctx context.Context, r *oci.Runtime, o oci.ExecOptions, limit int) (out, errOut []byte, code int, err error) {
	stdout, err := newCapture(limit)
	if err != nil {
		return nil, nil, 0, err
	}
	defer stdout.close()
	stderr, err := newCapture(limit)
	if err != nil {
		return nil, nil, 0, err
	}
	defer stderr.close()
	o.Stdout, o.Stderr = stdout.w, stderr.w
	code, err = r.Run(ctx, o)
	return stdout.finish(), stderr.finish(), code, err
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
