package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Exec is a command that runs, or ran, in a container next to its first process.
type Exec struct {
	cmd     *exec.Cmd
	dir     string
	runtime *Runtime
}

// ExecOptions are what to run and where its streams go.
type ExecOptions struct {
	ID      string
	Cgroup  string
	Dir     string // a folder for this exec's files; removed by Wait
	Process specs.Process
	// A nil stream goes to a null device of the command's own. Unused with a terminal.
	Stdin, Stdout, Stderr *os.File
	// With Process.Terminal set, one of these, depending on SendsConsole:
	Console  string   // unix socket that receives the terminal
	Terminal *os.File // that the runtime runs in
}

// Exec starts a command in a running container. The runtime's process lives as long as the
// command.
func (r *Runtime) Exec(o ExecOptions) (*Exec, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	e := &Exec{dir: o.Dir, runtime: r}
	process, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, e.cleanup())
	}
	defer func() { _ = process.Close(); _ = w.Close() }()
	args := append(r.globalArgs(), "--log="+e.file("log"), "--log-format=json",
		"exec", "--process=/proc/self/fd/3", "--pid-file="+e.file("pid"))
	if o.Console != "" {
		args = append(args, "--console-socket="+o.Console)
	}
	e.cmd = exec.Command(r.Path, append(args, o.ID)...) //nolint:noctx // ended by Kill
	e.cmd.Dir = "/"
	e.cmd.Env = r.environ()
	e.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	e.cmd.ExtraFiles = []*os.File{process}
	null, err := r.null.open()
	if err != nil {
		return nil, errors.Join(err, e.cleanup())
	}
	defer func() { _ = null.Close() }()
	e.cmd.Stdin, e.cmd.Stdout, e.cmd.Stderr = cmp.Or(o.Stdin, null), cmp.Or(o.Stdout, null), cmp.Or(o.Stderr, null)
	if o.Terminal != nil {
		e.cmd.Stdin, e.cmd.Stdout, e.cmd.Stderr = o.Terminal, o.Terminal, o.Terminal
		e.cmd.SysProcAttr.Setctty = true // its standard input becomes the controlling terminal
	}
	p := placement{}
	if r.own {
		p = placement{tasks: o.Cgroup, clone: o.Cgroup, view: true}
	}
	if err := r.startIn(e.cmd, p); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s exec: %w", r.Name, err), e.cleanup())
	}
	// The runtime forks the command as soon as it has read it, and the command inherits the score
	// of that moment.
	err = errors.Join(process.Close(), e.setOOMScore(o.Process.OOMScoreAdj))
	if err == nil {
		err = sendProcess(w, o.Process)
	}
	if err != nil {
		return nil, errors.Join(err, e.cmd.Process.Kill(), e.cmd.Wait(), e.cleanup())
	}
	return e, nil
}

// sendWait bounds how long a runtime may take to read its command.
const sendWait = time.Minute

// sendProcess sends the command to the runtime. If the runtime exits instead of reading it, its
// log says why.
func sendProcess(w *os.File, p specs.Process) error {
	if err := w.SetWriteDeadline(time.Now().Add(sendWait)); err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(p); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("send the command to the runtime: %w", err)
	}
	return w.Close()
}

// setOOMScore gives the runtime's process the container's score, which the command then inherits:
// crun sets it only for a container's first process.
func (e *Exec) setOOMScore(score *int) error {
	if score == nil {
		return nil
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", e.cmd.Process.Pid), strconv.AppendInt(nil, int64(*score), 10), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("set the OOM score of the command: %w", err)
	}
	return nil
}

func (e *Exec) file(name string) string { return filepath.Join(e.dir, name) }

// StartError means that the command could not be started at all.
type StartError struct{ Message string }

func (e *StartError) Error() string { return e.Message }

// Wait returns the command's exit code, or a *StartError if it did not start.
func (e *Exec) Wait() (code int, err error) {
	werr := e.cmd.Wait()
	defer func() { err = errors.Join(err, e.cleanup()) }()
	code = e.cmd.ProcessState.ExitCode()
	if ws, ok := e.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	var exit *exec.ExitError
	if werr != nil && !errors.As(werr, &exit) {
		return code, werr
	}
	if code == 0 {
		return 0, nil
	}
	log, rerr := os.ReadFile(e.file("log"))
	if rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		return code, rerr
	}
	if msg := strings.TrimSpace(string(log)); msg != "" {
		return code, &StartError{cleanMessage(msg)}
	}
	return code, nil
}

// Kill kills the command. The runtime's process then reaps the command and exits by itself.
// Killing the runtime, too, would leave the reaping to the machine's init, and a PID namespace
// does not end before its last zombie does. The runtime itself is killed only while there is no
// command yet.
func (e *Exec) Kill() error {
	pid, err := e.pid()
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
		if err == nil || errors.Is(err, unix.ESRCH) {
			return nil
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// pid returns the command's PID from the file that the runtime writes: crun makes the file first,
// and fills it a moment later.
func (e *Exec) pid() (pid int, err error) {
	for range 1000 {
		if pid, err = ReadPID(e.file("pid")); err == nil || errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return pid, err
}

func (e *Exec) cleanup() error { return os.RemoveAll(e.dir) }

// Run is Exec followed by Wait. If ctx ends first, the command is killed.
func (r *Runtime) Run(ctx context.Context, o ExecOptions) (int, error) {
	e, err := r.Exec(o)
	if err != nil {
		return 0, err
	}
	killed := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { killed <- e.Kill() })
	code, err := e.Wait()
	if !stop() {
		return code, errors.Join(context.Cause(ctx), <-killed)
	}
	return code, err
}
