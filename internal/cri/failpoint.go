package cri

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// failAt is the step at which this process shall die, for tests that start one to
// kill it there.
var failAt = sync.OnceValue(func() string { return os.Getenv("WHERRY_TEST_FAILPOINT") })

// failpoint kills the process, as kill -9 would, when the test asked for this step.
func failpoint(step string) {
	if failAt() == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal arrives
	}
}
