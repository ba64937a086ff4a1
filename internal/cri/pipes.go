package cri

import (
	"io"
	"os"
	"time"
)

// pipeSet connects a command's files with the client's streams.
type pipeSet struct {
	command []*os.File // ends that the command has
	readers []*os.File // our ends of its output
	writers []*os.File // our ends of its input
	outputs []chan struct{}
}

func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

// from returns a file from which the command reads what the client sends.
func (p *pipeSet) from(in io.Reader) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.command, p.writers = append(p.command, r), append(p.writers, w)
	go func() { // ends with the client's stream, or when the command is gone
		_, _ = io.Copy(w, in)
		_ = w.Close()
	}()
	return r, nil
}

// to returns a file whose content goes to the client.
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
		if _, err := io.Copy(out, r); err != nil {
			_, _ = io.Copy(io.Discard, r) // the client is gone; the command must not block
		}
	}()
	return w, nil
}

// drain passes on what the finished command has written.
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
