package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/component"
	"wherry.dev/internal/config"
	"wherry.dev/internal/daemon"
	"wherry.dev/internal/ownlog"
)

// envNotify names the file descriptor on which a detached daemon reports its progress to the
// `wherry up --detach` that started it.
const envNotify = "WHERRY_NOTIFY_FD"

// Words on that file descriptor; each starts a line and is followed by its text.
const (
	sayProgress = "progress "
	sayReady    = "ready "
	sayError    = "error "
)

func upCommand(d *dirs) *cobra.Command {
	cfg := config.Default()
	var file string
	var token tokenFlags
	var detach bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a node: API server, scheduler, controllers, kubelet, runtime, network",
		Long: `Starts a whole Kubernetes node in one process and, with --detach, returns as soon
as it is Ready. Stopping or killing it leaves the containers running; the next up on
the same folders finds them and carries on. ` + "`wherry down`" + ` takes the pods down too.

With --join-server it becomes another server of a cluster that is there, whose data all of them have
then: three servers go on when one of them fails.

Flags can also stand in ` + config.DefaultConfigFile + ` and in config.d/*.yaml beside it, under
the same names.`,
		Example: `  wherry up --detach
  wherry up --data-dir /srv/a --run-dir /run/a --node-name a --secure-port 7443 \
    --kubelet-port 7250 --pod-cidr 10.250.0.0/24     # a second one beside the first
  wherry up --join-server https://192.0.2.1:6443 --token TOKEN --detach     # another server`,
		Args: cobra.NoArgs,
	}
	cfg.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "config file (default "+config.DefaultConfigFile+", where it exists)")
	token.add(cmd)
	cmd.Flags().BoolVar(&detach, "detach", false, "keep running in the background; return when the node is Ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := daemon.RequireRoot(); err != nil {
			return err
		}
		full, err := loadConfig(cmd.Flags(), d, file, func(c *config.Config) error {
			if !c.Role.HasServer() {
				return fmt.Errorf("--role %s is that of a node alone: use `wherry join URL`", c.Role)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if full.JoinServer != "" {
			if full.JoinServer, err = daemon.ServerURL(full.JoinServer); err != nil {
				return fmt.Errorf("--join-server: %w", err)
			}
		}
		token, err := token.read()
		if err != nil {
			return err
		}
		if detach {
			return upDetached(cmd.Context(), cmd.ErrOrStderr(), full, token)
		}
		return upForeground(cmd.Context(), cmd.ErrOrStderr(), full, token)
	}
	return cmd
}

// loadConfig combines file, environment and flags; flags that were given take precedence.
// set may change what they say before it is completed.
func loadConfig(given *pflag.FlagSet, d *dirs, file string, set func(*config.Config) error) (config.Config, error) {
	c := config.Default()
	if err := c.Load(file); err != nil {
		return c, err
	}
	fields := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fields)
	var errs []error
	given.Visit(func(f *pflag.Flag) {
		if field := fields.Lookup(f.Name); field != nil {
			errs = append(errs, copyValue(field.Value, f.Value))
		}
	})
	if d.data != "" {
		c.DataDir = d.data
	}
	if d.run != "" {
		c.RunDir = d.run
	}
	if err := errors.Join(append(errs, set(&c))...); err != nil {
		return c, err
	}
	return c, c.Complete()
}

func copyValue(to, from pflag.Value) error {
	src, ok := from.(pflag.SliceValue)
	dst, okDst := to.(pflag.SliceValue)
	if ok && okDst {
		return dst.Replace(src.GetSlice())
	}
	return to.Set(from.String())
}

// upForeground runs an instance. token lets a node join its cluster; "" if it has joined before, or has a server.
func upForeground(ctx context.Context, out io.Writer, cfg config.Config, token string) error {
	say := newNotifier(out)
	setVerbosity(cfg.Verbosity)
	defer startPacing(ctx, ofNode)()
	stopLog := keepLogSmall(ctx, cfg.DataDir)
	defer stopLog()
	dm := daemon.New(cfg, say.progress).WithToken(token)
	err := component.Notify(ctx, dm.Ready(), func(ctx context.Context) error {
		done := make(chan struct{})
		told := make(chan struct{})
		go func() {
			defer close(told)
			select {
			case <-dm.Ready():
				say.ready(readyText(&cfg, dm.Missing))
			case <-done:
			}
		}()
		err := dm.Run(ctx)
		close(done)
		<-told
		return err
	})
	if errors.Is(err, daemon.ErrRestart) {
		err = startAnew(ctx, say)
	}
	if err != nil {
		say.failed(err)
	}
	return err
}

// readyText says what there is now, and what to do with it. missing is what keeps the node from being Ready.
func readyText(cfg *config.Config, missing string) string {
	switch {
	case missing != "" && cfg.Role.HasServer():
		return fmt.Sprintf("node %s is not Ready yet: %s; try: wherry kubectl --data-dir %s get nodes", cfg.NodeName, missing, cfg.DataDir)
	case missing != "":
		return fmt.Sprintf("node %s has joined %s and is not Ready yet: %s", cfg.NodeName, cfg.Server, missing)
	case !cfg.Role.HasServer():
		return fmt.Sprintf("node %s has joined %s and is Ready", cfg.NodeName, cfg.Server)
	case !cfg.Role.HasNode():
		return fmt.Sprintf("the server is ready; try: wherry token create --data-dir %s, and `wherry join` on another machine", cfg.DataDir)
	}
	return fmt.Sprintf("node %s is Ready; try: wherry kubectl --data-dir %s get nodes", cfg.NodeName, cfg.DataDir)
}

// startAnew replaces this program with itself, in the same process: for anything that waits for it
// or watches over it, nothing has ended. It returns only with an error, or if it was told to end in
// the meantime.
func startAnew(ctx context.Context, say *notifier) error {
	// Everything has stopped: a signal that arrives from here on ends the process at once, rather
	// than going to a program that is about to forget it.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	select {
	case <-ctx.Done():
		return nil
	default:
	}
	env, err := say.handOver(os.Environ())
	if err == nil {
		// A child between its fork and its exec has our files open, with the locks on the data,
		// which only closing them releases.
		syscall.ForkLock.Lock()
		defer syscall.ForkLock.Unlock()
		// the program may have been removed or replaced meanwhile; under this name it is still
		// there
		err = syscall.Exec("/proc/self/exe", os.Args, env)
	}
	return fmt.Errorf("restart wherry: %w", err)
}

func setVerbosity(v int) {
	var fs flag.FlagSet
	klog.InitFlags(&fs)
	_ = fs.Set("v", strconv.Itoa(v)) // a number always parses
}

// quietLog leaves only warnings and errors of the log on the terminal, for commands that report the
// rest in their own words.
func quietLog() {
	var fs flag.FlagSet
	klog.InitFlags(&fs)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "WARNING"} {
		_ = fs.Set(name, value) // constants that parse
	}
	klog.SetOutput(io.Discard)
}

// notifier reports to the process that waits, or to the terminal.
type notifier struct {
	pipe *os.File
	out  io.Writer
}

func newNotifier(out io.Writer) *notifier {
	n := &notifier{out: out}
	if fd, err := strconv.Atoi(os.Getenv(envNotify)); err == nil {
		n.pipe = os.NewFile(uintptr(fd), "notify")
		syscall.CloseOnExec(fd)
		_ = os.Unsetenv(envNotify) // our children must not inherit it
	}
	return n
}

func (n *notifier) progress(s string) { n.say(sayProgress, s) }

func (n *notifier) ready(s string) {
	n.say(sayReady, s)
	n.hangUp()
}

func (n *notifier) failed(err error) {
	if n.pipe != nil {
		n.say(sayError, oneLine(err))
		n.hangUp()
	}
}

func (n *notifier) say(word, text string) {
	if n.pipe == nil {
		fmt.Fprintln(n.out, "wherry: "+text)
		return
	}
	// if nobody listens any more, there is nobody to tell
	_, _ = fmt.Fprintln(n.pipe, word+text)
}

func (n *notifier) hangUp() {
	if n.pipe != nil {
		_ = n.pipe.Close()
		n.pipe, n.out = nil, io.Discard // they were meant for that process only
	}
}

// handOver passes the waiting process on to the program that takes this one's place, and returns
// the environment for it.
func (n *notifier) handOver(env []string) ([]string, error) {
	if n.pipe == nil {
		return env, nil
	}
	fd := n.pipe.Fd()
	if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
		return nil, fmt.Errorf("pass on the pipe of `wherry up --detach`: %w", err)
	}
	return append(env, fmt.Sprintf("%s=%d", envNotify, fd)), nil
}

// upDetached starts this program again, in a session of its own, and waits until it is Ready or
// says why it is not.
func upDetached(ctx context.Context, out io.Writer, cfg config.Config, token string) error {
	logFile, err := openLog(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, childArgs(os.Args[1:])...)
	child.Stdout, child.Stderr = logFile, logFile
	child.ExtraFiles = []*os.File{w}
	child.Env = append(os.Environ(), envNotify+"=3")
	if token != "" {
		child.Env = append(child.Env, envToken+"="+token)
	}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := follow(ctx, out, r); err != nil {
		return giveUp(ctx, child, err, logFile.Name())
	}
	return child.Process.Release()
}

// childArgs returns the arguments for a daemon in the background. A token is not among them: everybody can read the command
// lines of programs that run.
func childArgs(args []string) (out []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--detach" || strings.HasPrefix(a, "--detach=") || strings.HasPrefix(a, "--token="):
		case a == "--token":
			i++ // its value
		default:
			out = append(out, a)
		}
	}
	return out
}

// The log of a detached daemon: 10 MiB, and four older files of that size.
const (
	logSize  = 10 << 20
	logFiles = 4
)

func logPath(dataDir string) string { return filepath.Join(dataDir, "log", "wherry.log") }

func openLog(dataDir string) (*os.File, error) {
	path := logPath(dataDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return ownlog.Open(path)
}

// keepLogSmall bounds the log if standard output and error lead to it, until the process has
// nothing more to say.
func keepLogSmall(ctx context.Context, dataDir string) (stop func()) {
	l := ownlog.Log{Path: logPath(dataDir), Size: logSize, Keep: logFiles, FDs: []int{1, 2}}
	if !l.IsOwn() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	report := func(err error) {
		klog.FromContext(ctx).Error(err, "Cannot rotate the log; it keeps growing", "file", l.Path)
	}
	go func() {
		defer close(done)
		if err := l.Run(ctx, report); err != nil {
			report(err)
		}
	}()
	return func() { cancel(); <-done }
}

var errSilent = errors.New("wherry exited without reporting an error")

// follow prints what the daemon reports until it is Ready.
func follow(ctx context.Context, out io.Writer, r *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		word, text, _ := strings.Cut(lines.Text(), " ")
		switch word + " " {
		case sayReady:
			fmt.Fprintln(out, "wherry: "+text)
			return nil
		case sayError:
			return errors.New(text)
		case sayProgress:
			fmt.Fprintln(out, "wherry: "+text)
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return errSilent
}

// giveUp stops the daemon if it still runs, so that nothing half-made stays behind.
func giveUp(ctx context.Context, child *exec.Cmd, err error, logFile string) error {
	if ctx.Err() != nil {
		_ = child.Process.Signal(syscall.SIGTERM) // it may be gone already
	}
	_ = child.Wait() // its exit status says less than its output
	if errors.Is(err, errSilent) {
		return fmt.Errorf("%w; see %s", err, logFile)
	}
	return err
}
