package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// HungError means that a plugin did not answer in time and was killed.
type HungError struct {
	Plugin  string
	Command string // ADD, DEL, …
	After   time.Duration
}

func (e *HungError) Error() string {
	return fmt.Sprintf("CNI plugin %s did not answer %s within %s and was killed", e.Plugin, e.Command, e.After.Round(100*time.Millisecond))
}

// pipeGrace is how long we wait for a plugin's output after it has exited: something that it left
// running may hold the pipe open.
const pipeGrace = 2 * time.Second

// runner starts plugins for libcni. Each runs in its own process group, which is killed as a
// whole when the context ends and dies with Wherry: an ADD that outlived Wherry would undo the
// DEL of the next run.
type runner struct{ version.PluginDecoder }

// FindInPath finds a plugin's executable.
func (*runner) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin and returns its answer.
func (*runner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	name, command := filepath.Base(path), commandOf(env)
	start := time.Now()
	var out, diag bytes.Buffer
	err := retryBusy(ctx, func() error {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &diag
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
		cmd.WaitDelay = pipeGrace
		runtime.LockOSThread() // Pdeathsig is sent when the thread that started it ends
		defer runtime.UnlockOSThread()
		err := cmd.Run()
		if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
			return nil // it has exited; a child of it holds the pipe
		}
		return err
	})
	if diag.Len() > 0 {
		klog.FromContext(ctx).V(2).Info("CNI plugin wrote to stderr", "plugin", name, "command", command, "stderr", excerpt(diag.Bytes()))
	}
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, &HungError{Plugin: name, Command: command, After: time.Since(start)}
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("CNI plugin %s: %s: %w", name, command, context.Cause(ctx))
	case err != nil:
		return nil, pluginError(name, command, err, out.Bytes(), diag.Bytes())
	}
	if text := bytes.TrimSpace(out.Bytes()); len(text) > 0 && !json.Valid(text) {
		return nil, fmt.Errorf("CNI plugin %s answered %s with invalid JSON: %q", name, command, excerpt(text))
	}
	return out.Bytes(), nil
}

// retryBusy runs fn again while the executable is being written, which means that a plugin is
// just being installed.
func retryBusy(ctx context.Context, fn func() error) error {
	for range 20 {
		err := fn()
		if !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
	}
	return fn()
}

func commandOf(env []string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			return v
		}
	}
	return ""
}

// pluginError explains a plugin's failure: in its own words if it has some, as the CNI spec
// requires ("Error" on stdout), else by how it exited.
func pluginError(name, command string, err error, out, diag []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("start CNI plugin %s: %w", name, err)
	}
	var said types.Error
	if json.Unmarshal(out, &said) == nil && (said.Msg != "" || said.Code != 0) {
		return fmt.Errorf("CNI plugin %s: %w", name, &said)
	}
	how := exit.String()
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		how = fmt.Sprintf("killed by signal %d (%s)", ws.Signal(), unix.SignalName(ws.Signal()))
	}
	text := bytes.TrimSpace(append(bytes.TrimSpace(diag), append([]byte("\n"), out...)...))
	if len(text) == 0 {
		return fmt.Errorf("CNI plugin %s: %s on %s, without output", name, how, command)
	}
	return fmt.Errorf("CNI plugin %s: %s on %s: %q", name, how, command, excerpt(text))
}

// excerpt keeps a message readable, whatever the plugin wrote.
func excerpt(text []byte) string {
	const most = 512
	text = bytes.TrimSpace(text)
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// missingPlugin names the first plugin of a chain that is not installed.
func missingPlugin(types []string, dirs []string) error {
	for _, t := range types {
		if _, err := invoke.FindInPath(t, dirs); err != nil {
			return fmt.Errorf("CNI plugin %s was not found in %s; install it there", t, strings.Join(dirs, string(os.PathListSeparator)))
		}
	}
	return nil
}
