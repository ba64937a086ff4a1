// Package fakecsi is a CSI driver for tests: a server at a real socket, which really mounts. A volume is a directory
// of the driver's. It can hang, lie, and die between two steps.
package fakecsi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is a driver of a node. What tests set is set before it serves.
type Driver struct {
	spec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	Name string
	// Dir has the volumes, a directory each, and the driver's socket.
	Dir  string
	Can  []spec.NodeServiceCapability_RPC_Type
	Info *spec.NodeGetInfoResponse
	// Told gets what the kubelet says of the registration.
	Told chan *registration.RegistrationStatus
	// Device, if not empty, is what block volumes are: a path of a device.
	Device string

	mu sync.Mutex
	// calls are the requests, oldest first.
	calls []proto.Message
	// before is called before a call takes effect, by its name; an error is the answer.
	before map[string]func(ctx context.Context) error
	// volumes is what is wrong with volumes, by their IDs; storage what is wrong behind the driver.
	volumes map[string][]*spec.VolumeHealth_VolumeHealthEntry
	storage []*spec.NodeGetStorageHealthResponse_StorageBackendHealth
	// about, if not empty, is the volume that answers about any volume's health are about.
	about string
}

// All are the abilities that drivers can have.
var All = []spec.NodeServiceCapability_RPC_Type{
	spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	spec.NodeServiceCapability_RPC_EXPAND_VOLUME, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, spec.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
}

// New returns a driver that can do all, with a directory of its own.
func New(t testing.TB, name string) *Driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // its path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &Driver{
		Name: name, Dir: dir, Can: All, Info: &spec.NodeGetInfoResponse{NodeId: "id-of-" + name},
		Told: make(chan *registration.RegistrationStatus, 100), before: map[string]func(context.Context) error{},
		volumes: map[string][]*spec.VolumeHealth_VolumeHealthEntry{},
	}
}

// Socket is where the driver serves.
func (d *Driver) Socket() string { return filepath.Join(d.Dir, "csi.sock") }

// Serve serves, and registers at a socket if one is named. The returned function ends it as kill -9 does: the sockets
// stay.
func (d *Driver) Serve(t testing.TB, registrar string) (die func()) {
	t.Helper()
	server := grpc.NewServer()
	spec.RegisterNodeServer(server, d)
	registration.RegisterRegistrationServer(server, d)
	var all sync.WaitGroup
	for _, path := range []string{d.Socket(), registrar} {
		if path == "" {
			continue
		}
		_ = os.Remove(path)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		all.Go(func() { _ = server.Serve(l) })
	}
	die = sync.OnceFunc(func() {
		server.Stop()
		all.Wait()
	})
	t.Cleanup(die)
	return die
}

// Before has f called before each call of that name, such as "NodeStageVolume", takes effect; nil has nothing called.
func (d *Driver) Before(call string, f func(ctx context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before[call] = f
}

// Hang is for Before: it waits until nobody waits for the call any more.
func Hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Calls returns the names of the calls that change something, oldest first.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, c := range d.calls {
		out = append(out, nameOf(c))
	}
	return out
}

// Last returns the newest request of a kind.
func Last[T proto.Message](d *Driver) (last T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if r, ok := c.(T); ok {
			last = r
		}
	}
	return last
}

func nameOf(m proto.Message) string {
	return strings.TrimSuffix(string(m.ProtoReflect().Descriptor().Name()), "Request")
}

// begin notes a call.
func (d *Driver) begin(ctx context.Context, req proto.Message) error {
	d.mu.Lock()
	d.calls = append(d.calls, proto.Clone(req))
	before := d.before[nameOf(req)]
	d.mu.Unlock()
	if before != nil {
		return before(ctx)
	}
	return nil
}

// GetInfo implements the registration.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.Name, Endpoint: d.Socket(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.Told <- s
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo implements CSI.
func (d *Driver) NodeGetInfo(ctx context.Context, _ *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	d.mu.Lock()
	before := d.before["NodeGetInfo"]
	d.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, err
		}
	}
	return d.Info, nil
}

// NodeGetCapabilities implements CSI.
func (d *Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, can := range d.Can {
		out.Capabilities = append(out.Capabilities, &spec.NodeServiceCapability{
			Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: can}},
		})
	}
	return out, nil
}

// Volume is where the content of a volume is.
func (d *Driver) Volume(id string) string { return filepath.Join(d.Dir, "volumes", filepath.Base(id)) }

// bind mounts a volume at a path, once.
func (d *Driver) bind(from, at string) error {
	if d.mounted(at) {
		return nil
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s at %s: %v", from, at, err)
	}
	return nil
}

func (d *Driver) mounted(path string) bool {
	table, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(table), " "+path+" ")
}

// NodeStageVolume implements CSI: a mount of the volume.
func (d *Driver) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.Volume(r.VolumeId), 0o777); err != nil {
		return nil, err
	}
	if r.VolumeCapability.GetBlock() != nil {
		return &spec.NodeStageVolumeResponse{}, nil
	}
	return &spec.NodeStageVolumeResponse{}, d.bind(d.Volume(r.VolumeId), r.StagingTargetPath)
}

// NodePublishVolume implements CSI: a mount of what is staged, or of the volume. It makes the target.
func (d *Driver) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	if r.VolumeCapability.GetBlock() != nil {
		f, err := os.OpenFile(r.TargetPath, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return nil, err
		}
		_ = f.Close()
		return &spec.NodePublishVolumeResponse{}, d.bind(d.Device, r.TargetPath)
	}
	from := r.StagingTargetPath
	if from == "" {
		from = d.Volume(r.VolumeId)
		if err := os.MkdirAll(from, 0o777); err != nil {
			return nil, err
		}
	} else if !d.mounted(from) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged", r.VolumeId)
	}
	if err := os.MkdirAll(r.TargetPath, 0o750); err != nil {
		return nil, err
	}
	return &spec.NodePublishVolumeResponse{}, d.bind(from, r.TargetPath)
}

// NodeUnpublishVolume implements CSI.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	for d.mounted(r.TargetPath) {
		if err := unix.Unmount(r.TargetPath, unix.MNT_DETACH); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeUnstageVolume implements CSI. A volume that is still published is not unstaged.
func (d *Driver) NodeUnstageVolume(ctx context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	for d.mounted(r.StagingTargetPath) {
		if err := unix.Unmount(r.StagingTargetPath, unix.MNT_DETACH); err != nil {
			return nil, err
		}
	}
	return &spec.NodeUnstageVolumeResponse{}, nil
}

// NodeExpandVolume implements CSI.
func (d *Driver) NodeExpandVolume(ctx context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// NodeGetVolumeStats implements CSI: numbers that no file system has.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Total: 1000, Used: 300, Available: 700},
		{Unit: spec.VolumeUsage_INODES, Total: 100, Used: 30, Available: 70},
	}}, nil
}

// Ails says what is wrong with a volume from now on.
func (d *Driver) Ails(id string, with ...*spec.VolumeHealth_VolumeHealthEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.volumes[id] = with
}

// Answers has all answers about the health of volumes be about one.
func (d *Driver) Answers(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.about = id
}

// StorageAils says what is wrong behind the driver from now on.
func (d *Driver) StorageAils(with ...*spec.NodeGetStorageHealthResponse_StorageBackendHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.storage = with
}

// NodeGetVolumeHealth implements CSI.
func (d *Driver) NodeGetVolumeHealth(ctx context.Context, r *spec.NodeGetVolumeHealthRequest) (*spec.NodeGetVolumeHealthResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &spec.NodeGetVolumeHealthResponse{VolumeHealth: &spec.VolumeHealth{
		VolumeId: cmp.Or(d.about, r.GetVolumeId()), HealthStatuses: d.volumes[r.GetVolumeId()],
	}}, nil
}

// NodeGetStorageHealth implements CSI.
func (d *Driver) NodeGetStorageHealth(ctx context.Context, r *spec.NodeGetStorageHealthRequest) (*spec.NodeGetStorageHealthResponse, error) {
	if err := d.begin(ctx, r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &spec.NodeGetStorageHealthResponse{BackendHealth: d.storage}, nil
}

// Volumes returns the names of the volumes that were ever staged or published.
func (d *Driver) Volumes() []string {
	entries, err := os.ReadDir(filepath.Join(d.Dir, "volumes"))
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Refuse is for Before: it answers with an error.
func Refuse(code codes.Code, text string) func(context.Context) error {
	return func(context.Context) error { return status.Error(code, text) }
}

// String names the driver in failures.
func (d *Driver) String() string { return fmt.Sprintf("driver %s at %s", d.Name, d.Socket()) }
