// Package clocksteps builds a Wherry whose clock can be set while it runs, for its process alone: machines made of namespaces
// share the kernel's clock, which nobody may touch. The Go runtime asks the kernel's vDSO for the time; the program that is
// built here has a few lines of assembly in between, which add what a file says to the clock that can be set. What the kernel
// itself stamps, times of files among them, stays as it is.
package clocksteps

import (
	"context"
	"debug/buildinfo"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// ErrUnsupported is returned on machines for which there is no assembly.
var ErrUnsupported = errors.New("clocks can be set on amd64 only")

// Build builds such a program below dir, with the version of the program like.
func Build(ctx context.Context, like, dir string) (program string, err error) {
	if runtime.GOARCH != "amd64" {
		return "", ErrUnsupported
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "wherry.dev").Output()
	if err != nil {
		return "", fmt.Errorf("the module's folder: %w", err)
	}
	module := filepath.Clean(string(root[:len(root)-1])) // without the end of the line
	replace := map[string]string{}
	for _, name := range []string{"step.go", "step_amd64.s"} {
		replace[filepath.Join(module, "cmd", "wherry", "clock"+name)] = filepath.Join(module, "test", "clocksteps", "testdata", name)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	info, err := buildinfo.ReadFile(like)
	if err != nil {
		return "", err
	}
	flags := []string{"-checklinkname=0"} // without it, the linker lets nobody else use the runtime's names
	for _, s := range info.Settings {
		if s.Key == "-ldflags" {
			flags = append(flags, s.Value)
		}
	}
	program = filepath.Join(dir, "wherry-clock")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-ldflags", strings.Join(flags, " "), "-o", program, "./cmd/wherry") //nolint:gosec // ours
	build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", build.Args, err, out)
	}
	return program, nil
}

// Clock is what some processes take for the time.
type Clock struct{ file string }

// New makes a clock that is right, in a file.
func New(file string) (*Clock, error) {
	c := &Clock{file}
	return c, os.WriteFile(file, make([]byte, 8), 0o600)
}

// Env makes a process that Build has built take this clock for the time.
func (c *Clock) Env() string { return "CLOCK_STEP=" + c.file }

// Set sets it ahead of the kernel's clock, or behind it.
func (c *Clock) Set(by time.Duration) error {
	f, err := os.OpenFile(c.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by/time.Second)))
	return errors.Join(err, f.Close())
}
