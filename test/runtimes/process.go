package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/panics"
)

// startTimeout is how long a daemon may take to answer.
const startTimeout = 3 * time.Minute

// process is a daemon of a runtime.
type process struct {
	cmd   *exec.Cmd
	log   string // file
	ended chan struct{}
	exit  error // once it has ended
}

// run starts a daemon, which Close stops.
func (r *Runtime) run(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, log: filepath.Join(r.Dir, filepath.Base(cmd.Path)+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.processes = append(r.processes, p)
	go func() {
		defer close(p.ended)
		p.exit = cmd.Wait()
	}()
	return p, nil
}

// await asks until the daemon answers. Its socket appears, and then the service behind it: neither
// has an event that outsiders could wait for.
func (p *process) await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-p.ended:
			return fmt.Errorf("it ended: %w", p.exit)
		case <-ctx.Done():
			return err
		}
	}
}

// stop ends the daemon and looks for panics in its log.
func (p *process) stop() error {
	errs := []error{p.cmd.Process.Signal(unix.SIGTERM)}
	<-p.ended
	if _, ok := errors.AsType[*exec.ExitError](p.exit); !ok { // an exit status says how it was stopped
		errs = append(errs, p.exit)
	}
	return errors.Join(append(errs, panics.None(p.log))...)
}
