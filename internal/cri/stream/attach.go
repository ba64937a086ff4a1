package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// conmon's attach protocol: a message is the number of a stream, followed by at most this much
// data.
const (
	attachStderr = 3 // 2 is stdout
	attachBuffer = 32 << 10
)

// lastWords is how long a client still hears the container that has said all that it wanted to, and goes: mostly the answer to
// that.
const lastWords = 100 * time.Millisecond

// Attachment is what a client attaches to.
type Attachment struct {
	// Socket is conmon's.
	Socket string
	// Leaves: the client's input goes on to stdin, which stays open when that has ended; then the client is no longer
	// attached, as with containerd. Otherwise it stays until the container closes its streams.
	Leaves bool
	// Sizes are those of the client's terminal, if it has one, for which Resize is called.
	Sizes  <-chan remotecommand.TerminalSize
	Resize func(remotecommand.TerminalSize) error
}

// Connect connects a client to the streams that conmon offers, until either ends.
func (a Attachment) Connect(ctx context.Context, in io.Reader, out, errOut io.Writer) error {
	conn, err := dialAttach(a.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if a.Sizes != nil {
		resized := followResize(a.Sizes, a.Resize)
		defer resized()
	}
	if in != nil {
		go func() { // ends with the client's stream or the connection
			_, _ = io.Copy(struct{ io.Writer }{conn}, in)
			// At the end of the input, close this direction: with stdinOnce the container's stdin
			// closes.
			_ = conn.CloseWrite()
			if a.Leaves {
				time.AfterFunc(lastWords, func() { _ = conn.Close() })
			}
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
