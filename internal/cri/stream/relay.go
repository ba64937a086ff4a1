package stream

import (
	"context"
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Relay connects a client to a connection into a pod. It ends when both directions have ended, or the
// client has disconnected, and closes both.
func Relay(ctx context.Context, client io.ReadWriteCloser, conn *net.TCPConn) error {
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
