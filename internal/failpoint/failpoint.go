// Package failpoint lets tests kill a process between two steps, as kill -9 or a
// power cut would. Without WHERRY_TEST_FAILPOINT in the environment it does nothing.
package failpoint

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// failAt is the step at which this process shall die.
var failAt = sync.OnceValue(func() string { return os.Getenv("WHERRY_TEST_FAILPOINT") })

// At kills the process when the test asked for this step.
func At(step string) {
	if failAt() == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal arrives
	}
}
