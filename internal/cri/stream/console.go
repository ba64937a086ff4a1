package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"wherry.dev/internal/oci"
)

// console provides the terminal of a command.
type console interface {
	started()                  // called when the runtime runs
	accept() (*os.File, error) // our end of the terminal
	unblock()                  // called when the runtime has exited: nobody will send one any more
	close()
}

// newConsole has the runtime make the terminal and send it over a socket. runc's exec does not do
// that: it wants to run in a terminal itself, and connects it to the command's.
func newConsole(r *oci.Runtime, o *oci.ExecOptions) (console, error) {
	if !r.SendsConsole() {
		t, err := openTerminal()
		if err != nil {
			return nil, fmt.Errorf("open a terminal: %w", err)
		}
		o.Terminal = t.slave
		return t, nil
	}
	s, err := listenConsole()
	if err != nil {
		return nil, err
	}
	o.Console = s.path
	return s, nil
}

// terminal is a pseudoterminal pair that we made.
type terminal struct{ master, slave *os.File }

func openTerminal() (*terminal, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t := &terminal{master: os.NewFile(uintptr(fd), "terminal")}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		t.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		_, err = term.MakeRaw(int(t.slave.Fd())) // only the command's own terminal echoes
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *terminal) accept() (*os.File, error) { return t.master, nil }

func (t *terminal) unblock() {}

func (t *terminal) started() { _ = t.slave.Close() } // else reading would not end with the runtime

// close works even if either end was closed before.
func (t *terminal) close() {
	_ = t.master.Close()
	if t.slave != nil {
		_ = t.slave.Close()
	}
}

// consoleSocket receives a terminal from an OCI runtime (runtime-spec, console socket).
type consoleSocket struct {
	path     string
	listener *net.UnixListener
}

func listenConsole() (*consoleSocket, error) {
	// Not in the container's folder: socket paths have at most 107 bytes.
	dir, err := os.MkdirTemp("", "wherry-tty-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &consoleSocket{path: path, listener: l}, nil
}

func (s *consoleSocket) started() {}

// unblock ends accept with a connection that brings nothing. If the runtime connected and exited
// before anybody accepted, its connection still comes first.
func (s *consoleSocket) unblock() {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		_ = s.listener.Close() // accept is over, or there are no file descriptors left
		return
	}
	_ = conn.Close()
}

func (s *consoleSocket) close() {
	_ = s.listener.Close()
	_ = os.RemoveAll(filepath.Dir(s.path))
}

// accept waits for the runtime and takes the terminal from its message.
func (s *consoleSocket) accept() (*os.File, error) {
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("wait for the terminal: %w", err)
	}
	defer func() { _ = conn.Close() }()
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(buf, oob)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the runtime sent no terminal")
	}
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) == 0 {
		return nil, errors.Join(errors.New("the runtime sent no terminal"), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return nil, errors.Join(errors.New("the runtime sent no terminal"), err)
	}
	unix.CloseOnExec(fds[0])
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
