package stream

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lateWriter is a client that accepts its first piece only after the deadline for the rest.
type lateWriter struct {
	got []byte
	end func()
}

func (w *lateWriter) Write(p []byte) (int, error) {
	w.end()
	w.got = append(w.got, p...)
	return len(p), nil
}

// passed sets a file's read deadline to the past.
func passed(t *testing.T, f *os.File) {
	t.Helper()
	if err := f.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
}

// The last of a command's output, up to what a pipe holds, used to be lost if the client took
// longer than a second for what came before.
func TestOutputForASlowClientIsWhole(t *testing.T) {
	var p pipeSet
	defer p.closeAll()
	client, started := &lateWriter{}, make(chan struct{})
	client.end = func() { <-started; passed(t, p.readers[0]) }
	w, err := p.to(client)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", 60<<10) + "end"
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	close(started)
	p.drain()
	if got := string(client.got); got != text {
		t.Errorf("%d bytes of %d", len(got), len(text))
	}
}

// On a busy machine a command's output used to be read too late, and lost.
func TestOutputThatWasNotReadInTimeIsWhole(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	text := strings.Repeat("x", 1000)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	passed(t, r)
	if got, err := io.ReadAll(&output{f: r}); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
}

// A process that a command left running may write for ever: nobody waits for it.
func TestOutputOfWhatIsLeftBehindEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 4096))
		}
	}()
	passed(t, r)
	if got, err := io.ReadAll(&output{f: r}); err != nil || len(got) > outputHeld {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	<-done
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// conmon closes without reading what a client typed last: the last output that conmon had sent
// used to be lost.
func TestAttachHearsTheLastWordsOfWhoDoesNotListen(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = conn.Close(), f.Close() }()
	if _, err := io.WriteString(conn, "typed"); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fds[1], []byte("\x02last words")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fds[1]); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := copyAttached(conn, &out, io.Discard); err != nil || out.String() != "last words" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
