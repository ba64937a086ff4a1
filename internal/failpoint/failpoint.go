// Package failpoint lets tests kill a process between two steps, as kill -9 or a
// power cut would. Without Env in the environment it does nothing.
package failpoint

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Env is the environment variable that names the step at which the process dies.
const Env = "WHERRY_TEST_FAILPOINT"

var failAt = sync.OnceValue(func() string { return os.Getenv(Env) })

// At kills the process if the test asked for this step.
func At(step string) {
	if failAt() == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal arrives
	}
}
