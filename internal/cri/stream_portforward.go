package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/netns"
	"wherry.dev/internal/trace"
)

// PortForward connects the client to a port of the pod (the streaming server calls it). It ends
// when both directions have ended, or the client has disconnected.
func (s *Server) PortForward(ctx context.Context, id string, port int32, client io.ReadWriteCloser) (err error) {
	b, err := s.findSandbox(id)
	if err != nil {
		return err
	}
	ctx, span := trace.Start(trace.WithPod(ctx, b.uid()), "cri: port-forward")
	defer func() { _ = trace.End(span, err) }()
	defer func() { _ = client.Close() }()
	if !b.ready() {
		return precondition("sandbox %s is not ready", b.id)
	}
	conn, err := b.dial(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close(); _ = client.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, client)
		// The client has sent everything; the pod may still answer.
		sent <- errors.Join(err, conn.CloseWrite())
	}()
	_, rerr := io.Copy(client, conn)
	_ = client.Close()
	serr := <-sent
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(ignoreClosed(rerr), ignoreClosed(serr))
}

// ignoreClosed drops the errors of a connection that is closed while in use.
func ignoreClosed(err error) error {
	for _, end := range []error{net.ErrClosed, io.ErrClosedPipe, unix.ECONNRESET, unix.EPIPE, unix.ENOTCONN} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}

// dial connects to localhost in the pod's network, over IPv4 and then IPv6. Its error
// is one line in containerd's words, because kubectl shows it.
func (b *sandbox) dial(ctx context.Context, port int32) (*net.TCPConn, error) {
	connect := func() (*net.TCPConn, error) {
		var errs [2]error
		for i, host := range []string{"127.0.0.1", "::1"} {
			// DialContext may use another thread, in another namespace, but not for a literal
			// address: that takes one socket, made on this thread.
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				return c.(*net.TCPConn), nil
			}
			errs[i] = err
		}
		return nil, fmt.Errorf("failed to connect to localhost:%d inside namespace %q, IPv4: %w IPv6: %w", port, b.id, errs[0], errs[1])
	}
	if !b.networks {
		return connect()
	}
	var c *net.TCPConn
	err := netns.Do(func() (err error) { c, err = connect(); return err }, b.netnsPath())
	return c, err
}
