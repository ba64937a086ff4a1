// Package oom tells when the machine as a whole has run out of memory, and the kernel has killed a process: whoever it was,
// the node is too small for what runs on it. A container that exceeds its own limit is another matter, and in its pod's status.
package oom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Victim is a process that the kernel has killed.
type Victim struct {
	Name string
	PID  int
}

// String says what has happened, in upstream's words.
func (v Victim) String() string {
	return fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", v.Name, v.PID)
}

// record is as long as a record of the kernel's log can be.
const record = 8192

// KernelLog opens the kernel's log at its end. Each read returns one record.
func KernelLog() (io.ReadCloser, error) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0) // waits in Go's poller, and ends when it is closed
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Watch calls tell for each process that is killed because the machine has no memory left, until ctx ends.
func Watch(ctx context.Context, open func() (io.ReadCloser, error), tell func(Victim)) error {
	log, err := open()
	if err != nil {
		return fmt.Errorf("kernel's log: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	buf := make([]byte, record)
	for {
		n, err := log.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE): // records were overwritten before they were read
			continue
		case err != nil:
			return fmt.Errorf("kernel's log: %w", errors.Join(err, log.Close()))
		}
		if v, ok := parse(string(buf[:n])); ok {
			tell(v)
		}
	}
}

// killed is how a record ends that tells of a process which was killed. Its name may contain anything.
var killed = regexp.MustCompile(`,task=(.*),pid=(\d+),uid=\d+$`)

// parse returns the process of which a record tells: since Linux 5.0 it is one line.
func parse(record string) (Victim, bool) {
	_, text, _ := strings.Cut(record, ";")
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "oom-kill:constraint=") || !strings.Contains(line, ",global_oom,") {
		return Victim{}, false
	}
	m := killed.FindStringSubmatch(line)
	if m == nil {
		return Victim{}, false
	}
	pid, err := strconv.Atoi(m[2])
	return Victim{m[1], pid}, err == nil
}
