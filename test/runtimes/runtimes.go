// Package runtimes starts CRI runtimes for tests and benchmarks: `wherry cri`, and those of others
// to run on or to compare with. Each lives in a folder of its own and leaves nothing on the machine
// once it is closed.
package runtimes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/mount"
)

// Runtime is a running CRI runtime.
type Runtime struct {
	Name string // as its Version returns it
	// Dir holds everything of it; its path appears in the arguments of its monitors or shims.
	Dir string
	// Cgroup is the parent that pods must be put into.
	Cgroup string
	// Endpoint is the socket, unix://PATH.
	Endpoint string
	Conn     *grpc.ClientConn

	processes []*process                  // in the order of their start; the last one serves the socket
	teardown  func(context.Context) error // of what it made outside of Dir
	load      func(ctx context.Context, archive string) error
}

// network returns the network for the pods of one runtime.
func network() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + rand.IntN(64)), byte(rand.IntN(64) * 4), 0}), 22)
}

func newID() string { return fmt.Sprintf("t%06x", rand.Uint32()&0xffffff) }

// WherryOptions say which wherry to start, and with what.
type WherryOptions struct {
	Path string
	// OCI is crun, runc or "" for the default.
	OCI      string
	Archives []string
	// Env is its environment; nil for that of this process.
	Env []string
	// Range is where its pods get their addresses from, as --pod-cidr has it; "" for a network that no other runtime has.
	Range string
	// NetNS is the network namespace of the process, and what it made there goes with it; "" for this one.
	NetNS string
	// Config is its configuration file; "" for none.
	Config string
}

// Wherry starts `wherry cri` with the images of the archives.
func Wherry(ctx context.Context, o WherryOptions) (*Runtime, error) {
	dir, err := os.MkdirTemp("", "wherry-rt-")
	if err != nil {
		return nil, err
	}
	id, subnet := newID(), network()
	cfg := cri.Config{
		Root: filepath.Join(dir, "d", "cri"), State: filepath.Join(dir, "r", "cri"), Socket: filepath.Join(dir, "cri.sock"),
		InstanceID: id, PodCIDR: subnet, CNIConfDir: filepath.Join(dir, "net.d"),
	}
	store := filepath.Join(dir, "d", "store")
	r := &Runtime{Dir: dir, Cgroup: "/wherry-" + id + "-pods"}
	// Pods with a user namespace need to search the folder.
	if err := errors.Join(os.Chmod(dir, 0o711), fillStore(ctx, store, o.Archives)); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	r.teardown = func(ctx context.Context) error { return tearDown(ctx, cfg, store) }
	args := []string{
		o.Path, "cri", "--listen", "unix://" + cfg.Socket, "--data-dir", filepath.Join(dir, "d"), "--run-dir", filepath.Join(dir, "r"),
		"--instance-id", id, "--pod-cidr", cmp.Or(o.Range, subnet.String()), "--cni-conf-dir", cfg.CNIConfDir, "--runtime", o.OCI,
	}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	if o.NetNS != "" {
		args = append([]string{"nsenter", "--net=" + o.NetNS, "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // ended by Close
	cmd.Env = o.Env
	return r.start(ctx, cmd, cfg.Socket)
}

func fillStore(ctx context.Context, store string, archives []string) (err error) {
	s, err := image.Open(store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, a := range archives {
		if _, err := s.Import(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func tearDown(ctx context.Context, cfg cri.Config, store string) error {
	images, err := image.Open(store)
	if err != nil {
		return err
	}
	s, err := cri.New(ctx, cfg, images)
	if err != nil {
		return errors.Join(err, images.Close())
	}
	return errors.Join(s.Teardown(ctx), images.Close())
}

// start runs the process that serves the socket, and returns when it answers.
func (r *Runtime) start(ctx context.Context, cmd *exec.Cmd, socket string) (*Runtime, error) {
	p, err := r.run(cmd)
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	if err := r.connect(ctx, p, socket); err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not answer: %w\n%s", filepath.Base(cmd.Path), err, r.Log()), r.Close(ctx))
	}
	return r, nil
}

func (r *Runtime) connect(ctx context.Context, p *process, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return err
	}
	r.Conn, r.Endpoint = conn, "unix://"+socket
	return p.await(ctx, func(ctx context.Context) error {
		v, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
		if err == nil {
			r.Name = v.RuntimeName + " " + strings.TrimPrefix(v.RuntimeVersion, "v")
		}
		return err
	})
}

// Import adds the images of an archive. Wherry's runtime has the store to itself while it runs, so
// it takes archives only at its start.
func (r *Runtime) Import(ctx context.Context, archive string) error {
	if r.load == nil {
		return fmt.Errorf("%s takes no archives while it runs", r.Name)
	}
	return r.load(ctx, archive)
}

// Log returns what the runtime has logged so far.
func (r *Runtime) Log() string {
	var all strings.Builder
	for _, p := range r.processes {
		text, err := os.ReadFile(p.log)
		if err != nil {
			text = []byte(err.Error())
		}
		all.Write(text)
	}
	return all.String()
}

// PID returns the process ID of the runtime.
func (r *Runtime) PID() int { return r.processes[len(r.processes)-1].cmd.Process.Pid }

// Close removes the pods, stops the runtime and removes what it made.
func (r *Runtime) Close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	if r.Conn != nil {
		if r.Name != "" {
			errs = append(errs, r.removePods(ctx))
		}
		errs = append(errs, r.Conn.Close())
	}
	for _, p := range slices.Backward(r.processes) {
		errs = append(errs, p.stop())
	}
	if r.teardown != nil {
		errs = append(errs, r.teardown(ctx))
	}
	if r.Cgroup != "" && cgroup.Exists(r.Cgroup) {
		errs = append(errs, cgroup.Kill(r.Cgroup), cgroup.Remove(r.Cgroup))
	}
	return errors.Join(append(errs, mount.RemoveTree(r.Dir))...)
}

func (r *Runtime) removePods(ctx context.Context) error {
	client := runtimeapi.NewRuntimeServiceClient(r.Conn)
	pods, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods.Items {
		_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.Id})
		_, err2 := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.Id})
		errs = append(errs, err, err2)
	}
	return errors.Join(errs...)
}
