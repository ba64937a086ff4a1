package stream

import (
	"bytes"
	"io"
	"os"
	"time"
)

// capture collects what is written to a pipe, up to a limit. It reads the rest and drops it, so
// that the writer never blocks.
type capture struct {
	r, w *os.File
	buf  bytes.Buffer
	done chan struct{}
}

func newCapture(limit int) (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &capture{r: r, w: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		out := &output{f: r}
		// An error means the end of the pipe, or that close has closed it.
		if _, err := io.Copy(&c.buf, io.LimitReader(out, int64(limit))); err == nil {
			_, _ = io.Copy(io.Discard, out)
		}
	}()
	return c, nil
}

// finish returns what was written. If a background process still holds the pipe open, it waits
// only a little.
func (c *capture) finish() []byte {
	_ = c.w.Close()
	_ = c.r.SetReadDeadline(time.Now().Add(drainWait))
	<-c.done
	return c.buf.Bytes()
}

func (c *capture) close() {
	_ = c.w.Close()
	_ = c.r.Close()
	<-c.done
}
