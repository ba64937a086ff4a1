package stream

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipeSet connects a command's files to the client's streams.
type pipeSet struct {
	command []*os.File // ends that the command has
	readers []*os.File // our ends of its output
	writers []*os.File // our ends of its input
	outputs []chan struct{}
}

// output reads what a command writes to a pipe or terminal, until the end or the file's read
// deadline. What is already there at the deadline is still read: the command wrote it before it
// exited, no matter who was late afterwards, its client or this process.
type output struct {
	f    *os.File
	over bool // the deadline has passed
	left int  // may still be read: a process that keeps writing must not keep us here for ever
}

// outputHeld is at least what a pipe or a terminal, as made here, can hold.
const outputHeld = 64 << 10

func (o *output) Read(p []byte) (int, error) {
	if !o.over {
		n, err := o.f.Read(p)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		o.over, o.left = true, outputHeld
	}
	raw, err := o.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	n, rerr := 0, error(nil)
	// raw.Read would fail, as the deadline has passed. The file does not block.
	if err := raw.Control(func(fd uintptr) { n, rerr = unix.Read(int(fd), p[:min(len(p), o.left)]) }); err != nil {
		return 0, err
	}
	if rerr != nil || n <= 0 {
		return 0, io.EOF // nothing is left
	}
	o.left -= n
	return n, nil
}

// drainWait is how long the output of a finished command is still read while
// something that it left behind keeps it open.
const drainWait = time.Second

func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

// from returns a file from which the command reads what the client sends.
func (p *pipeSet) from(in io.Reader) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.command, p.writers = append(p.command, r), append(p.writers, w)
	go func() { // ends with the client's stream, or when the command has exited
		_, _ = io.Copy(w, in)
		_ = w.Close()
	}()
	return r, nil
}

// to returns a file; what the command writes to it goes to the client.
func (p *pipeSet) to(out io.Writer) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.command, p.readers = append(p.command, w), append(p.readers, r)
	done := make(chan struct{})
	p.outputs = append(p.outputs, done)
	go func() {
		defer close(done)
		from := &output{f: r}
		if _, err := io.Copy(out, from); err != nil {
			_, _ = io.Copy(io.Discard, from) // the client is gone; the command must not block
		}
	}()
	return w, nil
}

// drain passes on what the command wrote before it exited.
func (p *pipeSet) drain() {
	for _, f := range p.command {
		_ = f.Close()
	}
	for i, r := range p.readers {
		_ = r.SetReadDeadline(deadline(drainWait))
		<-p.outputs[i]
	}
}

func (p *pipeSet) closeAll() {
	for _, fs := range [][]*os.File{p.command, p.readers, p.writers} {
		for _, f := range fs {
			_ = f.Close()
		}
	}
}
