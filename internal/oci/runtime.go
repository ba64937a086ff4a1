package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/failpoint"
)

// Runtime is one OCI runtime, crun or runc or whatever is configured instead, together with
// conmon, under which it runs.
type Runtime struct {
	Name    string   // of the handler: "crun"
	Path    string   // of the executable
	Type    string   // whose command line it takes: Crun or Runc; "" means guess from its name
	Options []string // arguments before every command
	State   string   // folder of the runtime's own state
	Conmon  string   // path of conmon
	Home    string   // cgroup in which conmon runs

	Features Features // filled in by NewRuntime

	crun bool         // speaks crun's dialect
	own  bool         // we make and join the cgroups, not the runtime
	tree *cgroup.Tree // of the machine
	null *nulls
}

// NewRuntime examines the runtime and decides how cgroups are handled. On cgroup v2 crun manages
// them itself. It refuses hybrid machines, so anywhere else we make the cgroups and start crun
// inside them.
func NewRuntime(ctx context.Context, r Runtime) (*Runtime, error) {
	tree, err := cgroup.System()
	if err != nil {
		return nil, err
	}
	r.tree = tree
	if r.Type == "" {
		r.Type = typeOf(r.Path)
	}
	r.crun = r.Type == Crun
	r.own = r.crun && tree.Mode() != cgroup.V2
	if err := os.MkdirAll(r.State, 0o700); err != nil {
		return nil, err
	}
	if r.null, err = makeNulls(); err != nil {
		return nil, err
	}
	r.Features = r.readFeatures(ctx)
	return &r, nil
}

// OwnsCgroups reports whether the caller has to make the container's cgroup.
func (r *Runtime) OwnsCgroups() bool { return r.own }

// LimitsHugePages reports whether the runtime, or the caller in its place, finds the controller
// of huge pages. On a hybrid machine runc does not look into the v2 tree.
func (r *Runtime) LimitsHugePages() bool {
	return r.own || r.tree.Mode() == cgroup.V2 || r.tree.HasV1("hugetlb")
}

// SendsConsole reports how a command in a container gets a terminal: crun (true) sends its end
// over ExecOptions.Console, runc (false) needs ExecOptions.Terminal.
func (r *Runtime) SendsConsole() bool { return r.crun }

// BPFAnnotation is the annotation with a compiled seccomp program for crun, in base64.
const BPFAnnotation = "run.oci.seccomp_bpf_data"

// TakesBPF reports whether the runtime takes a compiled seccomp program in BPFAnnotation.
func (r *Runtime) TakesBPF() bool { return r.crun }

// Bundle describes a container to be created.
type Bundle struct {
	ID        string
	Dir       string // holds config.json, and then conmon's and the runtime's files
	Log       string // path of the CRI log; "" means none
	ExitDir   string // where conmon writes the exit code to a file named ID
	Cgroup    string
	Hooked    bool // its spec may have hooks, which only the runtime itself can run
	Terminal  bool
	Stdin     bool
	StdinOnce bool
}

// PIDFile returns the path of the file with the PID of the container's first process.
func (b Bundle) PIDFile() string { return filepath.Join(b.Dir, "pid") }

// MonitorPIDFile returns the path of the file with conmon's PID.
func (b Bundle) MonitorPIDFile() string { return filepath.Join(b.Dir, "conmon.pid") }

// AttachSocket returns the path of a SOCK_SEQPACKET: messages out begin with 2 (stdout) or 3
// (stderr).
func (b Bundle) AttachSocket() string { return filepath.Join(b.Dir, "attach") }

// ControlFIFO returns the path of a FIFO that takes "1 ROWS COLS" (resize) and "2 0 0" (reopen
// the log).
func (b Bundle) ControlFIFO() string { return filepath.Join(b.Dir, "ctl") }

// ExitFile returns the path of the file with the exit code. The file exists once the container
// has exited and its log is complete.
func (b Bundle) ExitFile() string { return filepath.Join(b.ExitDir, b.ID) }

// WriteSpec writes the bundle's config.json.
func (b Bundle) WriteSpec(spec any) error {
	doc, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Dir, "config.json"), doc, 0o600)
}

// Create starts conmon, which creates the container and stays with it until it exits; conmon
// outlives this process. It returns the PID of the container's first process, which waits for
// Start.
func (r *Runtime) Create(ctx context.Context, b Bundle) (pid int, err error) {
	view, err := r.openView()
	if err != nil {
		return 0, err
	}
	defer view.close()
	null, err := r.null.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	if err := r.makeHeldFIFO(b); err != nil {
		return 0, err
	}
	sync, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = sync.Close() }()
	args, err := r.conmonArgs(b, view, null)
	if err != nil {
		return 0, errors.Join(err, w.Close())
	}
	var out bytes.Buffer
	cmd := exec.Command(r.Conmon, args...) //nolint:noctx // outlives the call
	cmd.Dir = b.Dir
	cmd.Env = append(r.environ(), "_OCI_SYNCPIPE=3")
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	err = r.startIn(cmd, r.monitorPlacement(b))
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("start conmon: %w", err)
	}
	failpoint.At("conmon-started")
	stop := context.AfterFunc(ctx, func() { _ = sync.Close() })
	defer stop()
	pid, err = readSync(sync)
	if werr := cmd.Wait(); err == nil && werr != nil {
		err = fmt.Errorf("conmon: %w: %s", werr, strings.TrimSpace(out.String()))
	}
	if cerr := ctx.Err(); cerr != nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("%s create: %w", r.Name, err)
	}
	return pid, nil
}

// monitorPlacement returns where conmon starts: beside the containers. If we own the cgroups, it
// starts in the container's v2 cgroup, because a shell can only join the v1 ones cheaply; on such
// machines the v2 tree limits nothing but huge pages.
func (r *Runtime) monitorPlacement(b Bundle) placement {
	if r.own {
		return placement{tasks: r.Home, clone: b.Cgroup}
	}
	return placement{tasks: r.Home, clone: r.Home}
}

// cleanEnv returns the environment without what systemd means for Wherry alone. A runtime would
// pass it on: crun mounts its notify socket over the container's root, even if the name is empty,
// and runc listens on a socket of its own.
func cleanEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return strings.HasPrefix(e, "NOTIFY_SOCKET=") || strings.HasPrefix(e, "LISTEN_")
	})
}

// environ returns the runtime's environment. Before it enters a container, the runtime makes a
// copy of itself that nobody can write, through a file in this folder, or else in /tmp.
func (r *Runtime) environ() []string {
	return append(cleanEnv(os.Environ()), "_LIBCONTAINER_STATEDIR="+filepath.Dir(r.State))
}

// readSync reads what conmon reports over _OCI_SYNCPIPE (API version 1).
func readSync(f io.Reader) (int, error) {
	var msg struct {
		Data    int    `json:"data"`
		Message string `json:"message"`
	}
	if err := json.NewDecoder(f).Decode(&msg); err != nil {
		return 0, fmt.Errorf("conmon did not answer: %w", err)
	}
	if msg.Data <= 0 {
		return 0, &RefusedError{cleanMessage(msg.Message)}
	}
	return msg.Data, nil
}

// RefusedError is the message of a runtime that refused to create a container: because its
// command does not exist, say, or its working directory is a file.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return e.Message }

// cleanMessage turns what a runtime wrote to its log or stderr into one line.
func cleanMessage(s string) string {
	var lines []string
	for l := range strings.SplitSeq(s, "\n") {
		var entry struct {
			Msg   string `json:"msg"`
			Level string `json:"level"`
		}
		if json.Unmarshal([]byte(l), &entry) == nil && entry.Msg != "" {
			l = entry.Msg
		}
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return "the OCI runtime failed without a message"
	}
	return strings.Join(lines, "; ")
}

func (r *Runtime) conmonArgs(b Bundle, v *view, null *os.File) ([]string, error) {
	args := []string{
		"--api-version", "1", "-c", b.ID, "-u", b.ID, "-n", b.ID, "-b", b.Dir,
		"-p", b.PIDFile(), "-P", b.MonitorPIDFile(), "--exit-dir", b.ExitDir,
		"--full-attach", "--no-sync-log", "--log-level", "error",
	}
	if b.Log != "" {
		args = append(args, "-l", "k8s-file:"+b.Log)
	} else {
		args = append(args, "-l", "off:")
	}
	if b.Terminal {
		args = append(args, "-t")
	}
	if b.Stdin {
		args = append(args, "-i")
		if !b.StdinOnce {
			args = append(args, "--leave-stdin-open")
		}
	}
	path, rest, err := r.command(b, v, null)
	if err != nil {
		return nil, err
	}
	args = append(args, "-r", path)
	for _, a := range append(append(rest, r.globalArgs()...), r.heldArgs(b)...) {
		args = append(args, "--runtime-arg", a)
	}
	return args, nil
}

// command returns the program that conmon runs as its runtime, and its first arguments: a shell
// that sets things up and then becomes the runtime.
//
//   - If we own the cgroups, it joins the container's, so that conmon itself stays outside:
//     conmon must survive the cgroup to report its end, and its memory is not the container's.
//   - It replaces the machine's null device, which conmon opens, with the container's own.
func (r *Runtime) command(b Bundle, v *view, null *os.File) (path string, args []string, err error) {
	var script strings.Builder
	if r.own {
		tasks, err := r.tree.TaskFiles(b.Cgroup)
		if err != nil {
			return "", nil, err
		}
		for _, t := range tasks {
			fmt.Fprintf(&script, "echo 0 > '%s' || exit 1; ", t)
		}
	}
	script.WriteString("exec ")
	if v != nil {
		fmt.Fprintf(&script, "nsenter --mount=%s ", v.path())
	}
	script.WriteString(`"$@"`)
	for _, stream := range b.nullStreams() {
		fmt.Fprintf(&script, " %d<>/proc/%d/fd/%d", stream, os.Getpid(), null.Fd())
	}
	return "/bin/sh", []string{"-c", script.String(), "sh", r.Path}, nil
}

// nullStreams returns the standard streams for which conmon makes no pipe. A terminal takes their
// place later.
func (b Bundle) nullStreams() []int {
	switch {
	case b.Terminal:
		return []int{0, 1}
	case b.Stdin:
		return nil
	default:
		return []int{0}
	}
}

func (r *Runtime) globalArgs() []string {
	args := append(slices.Clone(r.Options), "--root="+r.State)
	if r.own {
		return append(args, "--cgroup-manager=disabled")
	}
	if r.crun {
		return append(args, "--cgroup-manager=cgroupfs")
	}
	return args
}

// Delete removes the runtime's state of a container whose processes are gone. It is not an error if
// the runtime does not know the container.
func (r *Runtime) Delete(ctx context.Context, b Bundle) error {
	dir := filepath.Join(r.State, b.ID)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if r.own && !b.Hooked {
		// Only files are left: the cgroup is ours, and the processes have exited.
		return os.RemoveAll(dir)
	}
	if err := r.run(ctx, "delete", "--force", b.ID); err != nil {
		if rerr := os.RemoveAll(dir); rerr != nil {
			return errors.Join(err, rerr)
		}
	}
	return nil
}

// run executes a command of the runtime.
func (r *Runtime) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Path, append(r.globalArgs(), args...)...)
	cmd.Env = r.environ()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", r.Name, args[0], err, cleanMessage(out.String()))
	}
	return nil
}

// ReadPID reads a PID file.
func ReadPID(path string) (int, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(doc)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s does not hold a process ID: %q", path, doc)
	}
	return pid, nil
}
