package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/image"
	"wherry.dev/internal/oci"
)

// imageCatalog is what the ImageService needs of the image store.
type imageCatalog interface {
	Pulls() []image.Pulling
	Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error)
	Lookup(refOrID string) (image.Image, bool)
	List() []image.Image
	Remove(ctx context.Context, refOrID string) error
}

// imageLayers is what containers need of the image store.
type imageLayers interface {
	Layers(imageID string) ([]string, error)
	Hold(imageID, owner string) error
	Release(owner string)
	Usage() (bytes, inodes uint64, err error)
	Dir() string
}

// ImageStore holds the images whose containers a Server runs.
type ImageStore interface {
	imageCatalog
	imageLayers
}

// Server is one instance of the runtime.
//
// Writers: the verb that holds the op lock of a sandbox or container writes its record; only a
// container's watcher writes its exit.
type Server struct {
	cfg  Config
	boot string // ID of the machine's boot

	clampOnce sync.Once // logs once that ulimits were lowered
	images    ImageStore
	network   *cni.Network
	runtimes  map[string]*oci.Runtime
	host      oci.Host
	seccomp   *seccompCache
	// translates reports whether pods can have user namespaces; the first call finds out.
	translates func() bool
	events     *broadcaster
	flights    flights
	stream     *streamServer
	socket     net.Listener

	layersUsage measuredUsage // of the containers' writable layers

	ctx    context.Context // ends when the server closes: watchers and verbs in flight
	cancel context.CancelFunc
	work   sync.WaitGroup // watchers and verbs in flight

	mu         sync.RWMutex // guards the maps below
	sandboxes  map[string]*sandbox
	containers map[string]*container
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
	s := &Server{
		cfg: cfg, images: images, events: newBroadcaster(), seccomp: newSeccompCache(),
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
	}
	s.translates = sync.OnceValue(s.probeUserns)
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.open(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("cri: %w", err)
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	if err := s.cfg.folders(); err != nil {
		return err
	}
	if s.cfg.Socket != "" { // first of all: it shows whether another process serves this instance
		if s.socket, err = listenSocket(s.cfg.Socket); err != nil {
			return fmt.Errorf("socket %s: %w", s.cfg.Socket, err)
		}
	}
	// conmon outlives this process: a file that a shell left open here must not stay open in
	// conmon.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("close inherited files at exec: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	s.boot = strings.TrimSpace(string(boot))
	if err := cgroup.Ensure(s.cfg.monitorCgroup(), nil); err != nil {
		return err
	}
	if s.runtimes, err = s.cfg.newRuntimes(ctx); err != nil {
		return err
	}
	if s.host, err = readHost(); err != nil {
		return err
	}
	if err := s.loadSandboxes(klog.FromContext(ctx)); err != nil {
		return err
	}
	if s.network, err = cni.Open(ctx, s.cfg.network(), s.livePods(), s.knownPods()); err != nil {
		return err
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	s.stream, err = newStreamServer(s.cfg.StreamAddress, s)
	return err
}

// Run serves the socket and the streams until ctx ends. Containers keep running.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	errs := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := []func(context.Context) error{s.stream.run, s.network.Run}
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
			klog.ErrorS(err, "Closing the network")
		}
		s.network = nil
	}
	if s.stream != nil {
		s.stream.close()
	}
	if s.socket != nil {
		if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			klog.ErrorS(err, "Closing the CRI socket")
		}
	}
}

// SetService routes a virtual address to backends, for pods of this instance and for the host.
func (s *Server) SetService(ctx context.Context, svc cni.Service) error {
	return s.network.SetService(ctx, svc)
}

// handler returns the OCI runtime of a handler.
func (s *Server) handler(name string) (*oci.Runtime, error) {
	if name == "" {
		name = s.cfg.DefaultRuntime
	}
	r, ok := s.runtimes[name]
	if !ok {
		return nil, fmt.Errorf("no runtime for %q is configured; there are %s", name, strings.Join(slices.Sorted(maps.Keys(s.runtimes)), ", "))
	}
	return r, nil
}

// handlerOf returns the OCI runtime of something that already exists. It also works for a handler
// that is no longer configured, so that its containers can still be removed.
func (s *Server) handlerOf(ctx context.Context, name string) (*oci.Runtime, error) {
	if r, err := s.handler(name); err == nil {
		return r, nil
	}
	klog.FromContext(ctx).Info("A pod's runtime handler is not configured any more; it can only be removed", "handler", name)
	return s.cfg.newRuntime(ctx, name, s.cfg.Runtimes[s.cfg.DefaultRuntime])
}

// readHost finds out what this machine can offer containers.
func readHost() (oci.Host, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return oci.Host{}, err
	}
	var mask uint64
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			if _, err := fmt.Sscanf(v, "%x", &mask); err != nil {
				return oci.Host{}, fmt.Errorf("read capabilities: %w", err)
			}
		}
	}
	mode, err := cgroup.Version()
	if err != nil {
		return oci.Host{}, err
	}
	h := oci.Host{Capabilities: oci.CapabilityNames(mask), OOMScoreMin: -1000, CgroupV2: mode == cgroup.V2}
	// Probed with an invalid descriptor: a kernel without the call returns ENOSYS.
	h.RecursiveReadOnly = !errors.Is(unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}), unix.ENOSYS)
	h.RaisesLimits = slices.Contains(h.Capabilities, "CAP_SYS_RESOURCE")
	if !h.RaisesLimits {
		if h.OOMScoreMin, err = readIntFile("/proc/self/oom_score_adj"); err != nil {
			return h, err
		}
		klog.InfoS("No CAP_SYS_RESOURCE: OOM scores of containers are not set below Wherry's own", "lowest", h.OOMScoreMin)
	}
	return h, nil
}

func readIntFile(path string) (int, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var n int
	if _, err := fmt.Sscan(string(doc), &n); err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return n, nil
}
