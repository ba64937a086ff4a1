package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"wherry.dev/internal/trace"
)

// conmon's attach protocol: a message is the number of a stream, followed by at most this much
// data.
const (
	attachStderr = 3 // 2 is stdout
	attachBuffer = 32 << 10
)

// Attach connects the client to the streams of the container's first process (the streaming
// server calls it). It ends with the container or the client.
func (s *Server) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) (err error) {
	c, err := s.findContainer(id)
	if err != nil {
		return err
	}
	ctx, span := trace.Start(trace.WithPod(ctx, s.uidOf(c)), "cri: attach")
	defer func() { _ = trace.End(span, err) }()
	conn, err := dialAttach(c.bundle.AttachSocket())
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if tty {
		resized := followResize(resize, func(size remotecommand.TerminalSize) error {
			return c.resize(ctx, size.Height, size.Width)
		})
		defer resized()
	}
	if in != nil {
		go func() { // ends with the client's stream or the connection
			_, _ = io.Copy(struct{ io.Writer }{conn}, in)
			// At the end of the input, close this direction: with stdinOnce the container's stdin
			// closes.
			_ = conn.CloseWrite()
		}()
	}
	return copyAttached(conn, out, errOut)
}

// dialAttach connects to a socket whose path may be too long for an address, through an open
// descriptor of it.
func dialAttach(path string) (*net.UnixConn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	short := "/proc/self/fd/" + strconv.Itoa(fd)
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: short, Net: "unixpacket"})
}

// copyAttached copies each message to its stream until conmon closes the connection. If conmon
// closes before it has read all that the client sent, the connection is reset: that error comes
// first, once, and the rest of the output follows it.
func copyAttached(conn io.Reader, out, errOut io.Writer) error {
	buf := make([]byte, attachBuffer+1)
	for {
		n, err := conn.Read(buf)
		if n > 1 {
			w := out
			if buf[0] == attachStderr {
				w = errOut
			}
			if w != nil {
				if _, werr := w.Write(buf[1:n]); werr != nil {
					return werr
				}
			}
		}
		if errors.Is(err, unix.ECONNRESET) {
			continue
		}
		// conmon closes without a final message: an empty message also means the end.
		if n == 0 || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}
