// Package leaks looks for goroutines that the tests of a package left. It is goleak with
// patience: goleak gives those that are about to end less than half a second, and on a busy
// machine one may not run at all for that long.
package leaks

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may take to end.
const patience = time.Minute

// VerifyTestMain runs the tests and ends the program, with a failure if a goroutine is left.
func VerifyTestMain(m goleak.TestingM, options ...goleak.Option) {
	os.Exit(run(m, patience, options...))
}

func run(m goleak.TestingM, patience time.Duration, options ...goleak.Option) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := left(patience, options...); err != nil {
		fmt.Fprintf(os.Stderr, "the tests passed, and left goroutines: %v\n", err)
		return 1
	}
	return 0
}

func left(patience time.Duration, options ...goleak.Option) error {
	for deadline := time.Now().Add(patience); ; {
		err := goleak.Find(options...) // it waits a little by itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
