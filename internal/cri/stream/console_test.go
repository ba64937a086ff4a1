package stream

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a busy machine a command may have exited before anybody has accepted the terminal that its
// runtime sent. The terminal still holds its output.
func TestTerminalOfACommandThatIsOver(t *testing.T) {
	s, err := listenConsole()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ours, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.WriteMsgUnix([]byte("terminal"), unix.UnixRights(int(ours.master.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.slave.WriteString("output"); err != nil {
		t.Fatal(err)
	}
	s.unblock()
	pty, err := s.accept()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 100)
	n, err := pty.Read(got)
	if string(got[:n]) != "output" || err != nil {
		t.Errorf("%q, %v", got[:n], err)
	}
	if err := pty.Close(); err != nil {
		t.Error(err)
	}
}

func TestRuntimeThatSendsNoTerminal(t *testing.T) {
	s, err := listenConsole()
	if err != nil {
		t.Fatal(err)
	}
	s.unblock()
	if _, err := s.accept(); err == nil || !strings.Contains(err.Error(), "sent no terminal") {
		t.Errorf("accept: %v", err)
	}
	s.close()
	if _, err := os.Stat(s.path); err == nil {
		t.Error("the socket stays")
	}
	s.unblock()
}
