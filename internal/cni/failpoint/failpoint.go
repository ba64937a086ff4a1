// Package failpoint lets tests kill a process between two steps, as kill -9 would.
package failpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// Env names the step at which the process shall die.
const Env = "WHERRY_TEST_FAILPOINT"

var at = os.Getenv(Env)

// Hit kills the process when a test asked for this step.
func Hit(step string) {
	if at == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal arrives
	}
}
