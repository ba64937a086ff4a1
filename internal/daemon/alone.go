package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/record"
	"wherry.dev/internal/trace"
)

// RuntimeConfig is the configuration of a CRI runtime alone.
type RuntimeConfig struct {
	DataDir, RunDir string
	CRI             cri.Config // its folders are set by OpenRuntime
	Images          image.Config
}

// Runtime is the CRI runtime alone, an instance without a control plane and a kubelet. `wherry
// image` and `wherry down` find it the way they find a whole node: by the lock in the data dir, the
// control socket in the run dir, and a record of how it was started.
type Runtime struct {
	cfg    RuntimeConfig
	lock   *instanceLock
	images *image.Store
	server *cri.Server
}

// runtimeFile is where the configuration of the last start of a runtime alone is kept.
func runtimeFile(dataDir string) string { return filepath.Join(dataDir, "runtime.json") }

// OpenRuntime takes over the folders and recovers what runs there.
func OpenRuntime(ctx context.Context, cfg RuntimeConfig) (r *Runtime, err error) {
	if err := checkDirs(cfg.DataDir, cfg.RunDir); err != nil {
		return nil, err
	}
	cfg.CRI.Root, cfg.CRI.State = filepath.Join(cfg.DataDir, "cri"), filepath.Join(cfg.RunDir, "cri")
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, err
	}
	r = &Runtime{cfg: cfg}
	if r.lock, err = lockInstance(cfg.DataDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if _, err := openRunDir(cfg.RunDir, cfg.DataDir); err != nil {
		return nil, err
	}
	if err := record.Write(runtimeFile(cfg.DataDir), 1, cfg.CRI); err != nil {
		return nil, err
	}
	return r, r.open(ctx)
}

func (r *Runtime) open(ctx context.Context) (err error) {
	if r.images, err = image.OpenWith(StoreDir(r.cfg.DataDir), r.cfg.Images); err != nil {
		return err
	}
	r.server, err = cri.New(ctx, r.cfg.CRI, r.images)
	return err
}

// Run serves the CRI and the control socket until ctx ends. Containers keep running.
func (r *Runtime) Run(ctx context.Context) error {
	traces := trace.NewStore()
	shutdown := traces.Install()
	c := &control{images: r.images, traces: traces}
	g := newGroup()
	g.start(ctx, "cri", r.server.Run)
	g.start(ctx, "control", func(ctx context.Context) error { return c.serve(ctx, ControlSocket(r.cfg.RunDir)) })
	return errors.Join(g.wait(ctx), g.stop(context.WithoutCancel(ctx)), shutdown(context.WithoutCancel(ctx)))
}

// Close releases the folders for the next process.
func (r *Runtime) Close() error {
	var errs []error
	if r.images != nil {
		errs = append(errs, r.images.Close())
	}
	return errors.Join(append(errs, r.lock.release())...)
}

// takeDownAlone removes what runs on a runtime that ran alone, if there was one.
func takeDownAlone(ctx context.Context, dataDir, runDir string, progress func(string)) (err error) {
	var cfg cri.Config
	_, err = record.Read(runtimeFile(dataDir), &cfg)
	if errors.Is(err, fs.ErrNotExist) {
		return refuseUnknown(dataDir)
	}
	if err != nil {
		return err
	}
	return whileLocked(dataDir, runDir, func() error {
		progress("stopping the containers")
		return tearDown(ctx, cfg, func() (*image.Store, error) { return image.OpenWith(StoreDir(dataDir), image.Config{}) })
	})
}

// refuseUnknown refuses the folders of a runtime that left no record, because an older Wherry did
// not write one: containers may run there that nobody here knows how to stop.
func refuseUnknown(dataDir string) error {
	if _, err := os.Stat(instanceFile(dataDir)); err == nil {
		return nil
	}
	for _, kind := range []string{"sandboxes", "containers"} {
		if left, err := os.ReadDir(filepath.Join(dataDir, "cri", kind)); err == nil && len(left) > 0 {
			return fmt.Errorf("%s has containers from a `wherry cri` that left no record of its settings; "+
				"start it once more with this version, then run `wherry down` again", dataDir)
		}
	}
	return nil
}

// refuseForeign refuses to delete the data of an API server that was run by itself.
func refuseForeign(dataDir string) error {
	path := filepath.Join(apiserver.DataIn(dataDir), "member", "snap", "db")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return refuseLocked(f, dataDir)
}

// refuseLocked refuses data whose file a running API server holds.
func refuseLocked(f *os.File, dataDir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("an API server is running on %s (%s is locked: %w); stop it first", dataDir, f.Name(), err)
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}
