// Package panics makes a handler's panic a failure of the tests in which it happened. Servers
// recover from such panics, answer 500 or break the connection, and carry on: a test that retries,
// or that asked for something else, would not notice.
//
// Tests of packages that serve have a TestMain with Watch (test/layers makes sure of that); those
// that start daemons check their logs with None.
package panics

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Runner is a *testing.M, or a wrapper around one.
type Runner interface{ Run() int }

// Watch returns m with a Run that fails if a panic was recovered from meanwhile.
func Watch(m Runner) Runner { return watched{m} }

type watched struct{ Runner }

// Run implements Runner.
func (w watched) Run() int {
	var seen atomic.Int32
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, r any) {
		if r == http.ErrAbortHandler { //nolint:errorlint // net/http's rule: this very value is no fault
			return
		}
		seen.Add(1)
		fmt.Fprintf(os.Stderr, "a handler panicked, which fails the tests: %v\n%s\n", r, debug.Stack())
	})
	log.SetOutput(&netHTTP{to: log.Writer(), seen: &seen})
	code := w.Runner.Run()
	if n := seen.Load(); n > 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "FAIL: handlers panicked %d times; see above\n", n)
		return 1
	}
	return code
}

// netHTTP is the log of servers without one of their own: net/http writes the panics there that it
// recovered from.
type netHTTP struct {
	to   io.Writer
	seen *atomic.Int32
}

func (n *netHTTP) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("http: panic serving")) {
		n.seen.Add(1)
	}
	return n.to.Write(line)
}

// inLog matches the messages of net/http, of k8s.io/apimachinery, of k8s.io/apiserver when the
// client had left, and of Go itself.
var inLog = regexp.MustCompile(`http: panic serving|Observed a panic|panicked: true|^panic: |^fatal error: `)

// None returns an error that contains every line about a panic in the logs of daemons. The patterns
// are those of path/filepath, so that rotated logs are read too.
func None(patterns ...string) error {
	var errs []error
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			lines, err := inFile(file)
			errs = append(errs, err)
			for _, line := range lines {
				errs = append(errs, fmt.Errorf("%s tells of a panic: %s", file, line))
			}
		}
	}
	return errors.Join(errs...)
}

func inFile(path string) (lines []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was rotated away at this moment
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if inLog.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
	}
}
