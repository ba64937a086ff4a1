package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/confine"
	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/imageservice"
	"wherry.dev/internal/cri/rootfs"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/cri/stream"
	"wherry.dev/internal/oci"
)

// ImageStore holds the images whose containers a Server runs.
type ImageStore interface {
	container.Images
	imageservice.Store
}

// Server is one instance of the runtime.
//
// Writers: the verb that holds the op lock of a sandbox or container writes its record; only a
// container's watcher writes its exit.
type Server struct {
	*imageservice.Service
	*store

	cfg      Config
	images   ImageStore
	handlers *handlers
	network  *cni.Network
	host     oci.Host
	// translates reports whether pods can have user namespaces; the first call finds out.
	translates   func() bool
	sandboxEnv   *sandbox.Env
	containerEnv *container.Env
	events       *broadcaster
	flights      *flights
	stream       *stream.Server
	socket       net.Listener

	ctx    context.Context // ends when the server closes: watchers and verbs in flight
	cancel context.CancelFunc
	work   sync.WaitGroup // watchers and verbs in flight
}

// New opens an instance and recovers every sandbox and container from disk. It disturbs nothing
// that runs.
func New(ctx context.Context, cfg Config, images ImageStore) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("cri: running containers needs root")
	}
	s := &Server{cfg: cfg, images: images, events: newBroadcaster(), store: newStore(), Service: imageservice.New(images, cfg.layout().Containers())}
	s.translates = sync.OnceValue(func() bool { return sandbox.CanTranslate(ctx, images.Dir()) })
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.flights = &flights{ctx: s.ctx, work: &s.work, m: map[string]*flight{}}
	if err := s.open(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("cri: %w", err)
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if s.handlers, err = newHandlers(ctx, s.cfg); err != nil {
		return err
	}
	if s.host, err = readHost(); err != nil {
		return err
	}
	s.sandboxEnv = &sandbox.Env{
		Layout: s.cfg.layout(), Cgroups: s.cfg.cgroupRoot(), Monitors: s.cfg.monitorCgroup(),
		Boot: strings.TrimSpace(string(boot)), Handlers: s.handlers,
	}
	s.containerEnv = &container.Env{
		Layout: s.cfg.layout(), Cgroups: s.cfg.cgroupRoot(), Monitors: s.cfg.monitorCgroup(), Boot: s.sandboxEnv.Boot,
		Images: s.images, Host: s.host, Seccomp: confine.NewSeccomp(), CDISpecDirs: s.cfg.CDISpecDirs,
		Ulimits: &confine.Ulimits{Default: s.cfg.DefaultUlimits, Raises: s.host.RaisesLimits},
	}
	if err := s.loadSandboxes(klog.FromContext(ctx)); err != nil {
		return err
	}
	if s.network, err = cni.Open(ctx, s.cfg.network(), s.livePods(), s.knownPods()); err != nil {
		return err
	}
	s.sandboxEnv.Network = s.network
	if err := s.recover(ctx); err != nil {
		return err
	}
	s.stream, err = stream.NewServer(s.cfg.StreamAddress, streamRuntime{s})
	return err
}

// prepare makes what must be there before anything is read.
func (s *Server) prepare(ctx context.Context) (err error) {
	if err := errors.Join(s.cfg.layout().Make(), rootfs.Skeletons(s.cfg.layout().Skeletons()).Sweep()); err != nil {
		return err
	}
	if s.cfg.Socket != "" { // first of all: it shows whether another process serves this instance
		if s.socket, err = listenSocket(ctx, s.cfg.Socket); err != nil {
			return fmt.Errorf("socket %s: %w", s.cfg.Socket, err)
		}
	}
	// conmon outlives this process: a file that a shell left open here must not stay open in
	// conmon.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("close inherited files at exec: %w", err)
	}
	return cgroup.Ensure(s.cfg.monitorCgroup(), nil)
}

// Run serves the socket and the streams until ctx ends. Containers keep running.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	errs := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := []func(context.Context) error{s.stream.Run, s.network.Run}
	if s.socket != nil {
		servers = append(servers, s.serveSocket)
	}
	for _, run := range servers {
		go func() { errs <- run(ctx) }()
	}
	klog.FromContext(ctx).Info("Container runtime is ready", "socket", s.cfg.Socket, "runtime", s.cfg.DefaultRuntime)
	var first error
	for range servers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
		cancel()
	}
	return first
}

// Close closes a server on which Run was not called.
func (s *Server) Close() { s.close() }

// close stops the watchers and waits for verbs in flight.
func (s *Server) close() {
	s.cancel()
	s.work.Wait()
	s.events.close()
	if s.network != nil {
		if err := s.network.Close(); err != nil {
			klog.ErrorS(err, "Cannot close the network")
		}
		s.network = nil
	}
	if s.stream != nil {
		s.stream.Close()
	}
	if s.socket != nil {
		if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			klog.ErrorS(err, "Cannot close the CRI socket")
		}
	}
}
