// Package inside finds pods of this machine from the outside, by their processes, and tries from a network namespace
// what a pod there could do.
package inside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"wherry.dev/internal/netns"
)

const loop = `trap "exit 0" TERM INT; sleep 1000000 & wait`

// Loop is the command of a container that waits for its end, and by which Process finds the pod.
func Loop(pod string) []string { return []string{"sh", "-c", loop, pod} }

// ErrNoProcess is that of a pod that does not run.
var ErrNoProcess = errors.New("the container's process is not to be found")

// Process returns the first process of a pod whose command is Loop.
func Process(pod string) (pid int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	want := strings.Join(Loop(pod), "\x00") + "\x00"
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && string(cmdline) == want {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("pod %s: %w", pod, ErrNoProcess)
}

// NetNS returns the path of the network namespace of a pod whose command is Loop.
func NetNS(pod string) (string, error) {
	pid, err := Process(pod)
	return fmt.Sprintf("/proc/%d/ns/net", pid), err
}

// Probed is when something worked.
type Probed struct {
	At  time.Time
	Err error
}

// Probe tries, in a network namespace and once in every so often, until it works, and tells when that was.
func Probe(ctx context.Context, ns string, every time.Duration, works func() bool) <-chan Probed {
	out := make(chan Probed, 1)
	go func() {
		err := netns.Do(func() error {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for !works() {
				select {
				case <-ctx.Done():
					return fmt.Errorf("it never answered: %w", ctx.Err())
				case <-tick.C:
				}
			}
			return nil
		}, ns)
		out <- Probed{At: time.Now(), Err: err}
	}()
	return out
}

// Connects reports whether an address takes a connection within a time.
func Connects(to string, within time.Duration) bool {
	c, err := net.DialTimeout("tcp", to, within) //nolint:noctx // on a thread of its own namespace
	if err != nil {
		return false
	}
	return c.Close() == nil
}
