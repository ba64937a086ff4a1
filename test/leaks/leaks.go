// Package leaks makes tests fail that leave goroutines behind, as goleak does, and gives goroutines
// that are about to end as much time as a busy machine needs: goleak's own is half a second.
//
//	func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }
package leaks

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines have to end.
const patience = time.Minute

// Runner is a *testing.M, or a wrapper around one.
type Runner interface{ Run() int }

// Watch returns m with a Run that fails if goroutines stay behind, except for the ignored ones.
func Watch(m Runner, ignored ...goleak.Option) Runner { return watched{m, ignored} }

type watched struct {
	Runner
	ignored []goleak.Option
}

// Run implements Runner.
func (w watched) Run() int {
	code := w.Runner.Run()
	if code != 0 {
		return code
	}
	if err := Find(w.ignored...); err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: goroutines are left after all tests: %v\n", err)
		return 1
	}
	return 0
}

// Find returns an error that names the goroutines that stay behind.
func Find(ignored ...goleak.Option) error { return find(patience, ignored) }

func find(patience time.Duration, ignored []goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(ignored...) // pauses by itself
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
