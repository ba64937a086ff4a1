package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"k8s.io/apimachinery/pkg/util/uuid"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/component"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/image"
	"wherry.dev/internal/kubelet"
	"wherry.dev/internal/localvolume"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/record"
	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/trace"
)

// StoreDir is the image store of a data dir.
func StoreDir(dataDir string) string { return filepath.Join(dataDir, "store") }

// Daemon is one node. Make it with New, Run it once.
type Daemon struct {
	cfg      config.Config
	progress func(string)
	traces   *trace.Store
	group    *group
	began    time.Time

	lock   *instanceLock
	fresh  bool // nothing of the instance ran when this start began
	images *image.Store
	api    *apiserver.Server
	// serving is api, once it is ready: for the control socket, which is served while api is being made.
	serving atomic.Pointer[apiserver.Server]

	// scheduler answers for itself once it is made.
	scheduler atomic.Pointer[scheduler.Scheduler]

	// How components reach the API server if it is not in this process.
	joined *joined
	// token lets this node join, if it has not before.
	token string
	// invitation is how this node joins its cluster; nil if it has joined before, or has a server.
	invitation *invitation
	// accepted are the files that this start has made of what other servers have said.
	accepted []string
	// several: other servers use the same data, or may.
	several bool
	// identity is who holds a lease when this process does.
	identity string
	// restart is closed when the same program should take this one's place.
	restart chan struct{}
	again   sync.Once

	// dns is what is published of the DNS server of this process; nil if the cluster has none of ours.
	dns *clusterdns.Config

	guard        guard
	runtime      internalapi.RuntimeService
	imageService internalapi.ImageManagerService

	// disk has this node's volumes of the class local; nil if it makes none.
	disk *localvolume.Local

	// key is this node's private one for WireGuard; zero if its cluster has none.
	key wgtypes.Key

	node  *kubelet.Kubelet
	ready chan struct{}
	// Missing is what keeps the node from being Ready though everything has been started; "" for nothing. It is set before
	// Ready is closed.
	Missing string
}

// New takes a complete configuration; progress is told, in a few words, what is being done.
func New(cfg config.Config, progress func(string)) *Daemon {
	return &Daemon{cfg: cfg, progress: progress, traces: trace.NewStore(), group: newGroup(), ready: make(chan struct{}), restart: make(chan struct{}),
		identity: cfg.NodeName + "_" + string(uuid.NewUUID())}
}

// WithToken gives a node what it joins its cluster with. The token is kept nowhere.
func (d *Daemon) WithToken(token string) *Daemon {
	d.token = token
	return d
}

// Ready is closed when the node is Ready, or the server if there is no node.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Run starts what the instance's role has:
//
//  1. check what can be checked before anything is made
//  2. data dir, lock, run dir (on a tmpfs of its own unless it is on one)
//  3. API server, or the connection to somebody else's; image store and CRI runtime
//  4. what works on the cluster's objects (parts)
//  5. kubelet, until the node is Ready
//
// It returns when ctx ends or a component fails, after everything has stopped in the reverse order.
// Containers keep running.
func (d *Daemon) Run(ctx context.Context) (err error) {
	if d.cfg.Role.HasServer() {
		d.cfg.Joined = hasFacts(d.cfg.DataDir) || d.cfg.JoinServer != "" && !d.hasJoinedServers()
	}
	if err := preflight(ctx, &d.cfg); err != nil {
		return err
	}
	switch {
	case !d.cfg.Role.HasServer():
		err = d.invite(ctx)
	case d.cfg.JoinServer != "":
		err = d.inviteServer(ctx)
	}
	if err != nil {
		return err
	}
	if err := d.openDirs(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.lock.release()) }()
	started := false
	defer func() {
		if !started && d.invitation != nil {
			err = errors.Join(err, d.unjoin())
		}
		if d.fresh && !started {
			// what a failed start has made is removed again; if anything had run here before, the
			// run dir would not be new
			err = errors.Join(err, removeRunning(context.WithoutCancel(ctx), d.cfg))
		}
	}()
	shutdown := d.traces.Install()
	defer func() { err = errors.Join(err, shutdown(context.WithoutCancel(ctx))) }()
	defer func() { err = errors.Join(err, d.stop(ctx)) }()
	if err := d.startAll(ctx); err != nil {
		return err
	}
	started = true
	close(d.ready)
	return d.live(ctx)
}

// ErrRestart is what Run returns when the same program should take this one's place at once: it
// cannot recover by itself, and the containers and their pods' states are safe.
var ErrRestart = component.ErrRestart

// The time between two starts of a node whose data failed, and the room that the next one needs.
const (
	restartAfter = 10 * time.Second
	restartRoom  = minFree + 32<<20
)

// failedStop is how long a stop waits for components whose data have failed: what is left of an
// etcd may block one of them for ever, and a node is safe to end at any moment.
const failedStop = 10 * time.Second

// live waits for the end. When the cluster's data has failed, or is about to, the kubelet and the
// pods carry on as they are, and the node restarts as soon as there is room for the data.
func (d *Daemon) live(ctx context.Context) error {
	select {
	case <-d.restart:
		return ErrRestart
	case <-ctx.Done():
		return nil
	case err := <-d.group.failed:
		return err
	case <-d.restartDue():
	}
	if reason := d.api.RestartReason(); errors.Is(reason, storage.ErrRemoved) {
		return reason
	}
	klog.FromContext(ctx).Error(d.api.RestartReason(),
		"The API server cannot continue in this process; pods keep running, and wherry restarts as soon as the disk has space")
	return d.awaitRoom(ctx, d.group)
}

// awaitRoom waits until the cluster's data can be opened again. Another process has to do that:
// what is left of an etcd that has failed holds its files. It returns nil when ctx ends.
func (d *Daemon) awaitRoom(ctx context.Context, g *group) error {
	for wait := restartAfter - time.Since(d.began); ; wait = time.Second {
		if due, err := waitFor(ctx, g, time.After(wait)); !due {
			return err
		}
		if room, err := disk.Look(d.cfg.DataDir); err == nil && room.Free >= restartRoom {
			klog.FromContext(ctx).Info("Restarting: the disk has space for the cluster's data again", "freeMiB", room.Free>>20)
			return ErrRestart
		}
	}
}

func (d *Daemon) startAll(ctx context.Context) error {
	d.began = time.Now()
	if err := d.startBelow(ctx); err != nil {
		return err
	}
	if err := errors.Join(d.makeDisk(), d.loadKey()); err != nil {
		return err
	}
	if err := d.startParts(ctx); err != nil {
		return err
	}
	what := "The server is ready"
	if d.cfg.Role.HasNode() {
		if err := d.startKubelet(ctx); err != nil {
			return err
		}
		what = "The node is Ready"
		if d.Missing != "" {
			what = "The node is not Ready yet: " + d.Missing
		}
	}
	klog.FromContext(ctx).Info(what, "node", d.cfg.NodeName, "after", time.Since(d.began).Round(time.Millisecond))
	return nil
}

// startBelow starts what everything else stands on.
func (d *Daemon) startBelow(ctx context.Context) error {
	if !d.cfg.Role.HasServer() {
		// The runtime has to know the cluster's networks, which the server tells.
		if err := d.connect(ctx); err != nil {
			return err
		}
		return d.startRuntime(ctx, ctx)
	}
	if d.invitation != nil {
		if err := d.joinServers(ctx); err != nil {
			return err
		}
	}
	if d.cfg.Joined {
		if err := d.recall(); err != nil {
			return err
		}
	}
	d.several = len(d.cfg.EtcdServers) > 0 || apiserver.HasServers(d.cfg.DataDir)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.startAPI(ctx, gctx) })
	if d.cfg.Role.HasNode() {
		g.Go(func() error { return d.startRuntime(ctx, gctx) })
	} else {
		d.startControl(ctx, &control{traces: d.traces, elsewhere: d.tracesElsewhere, api: &d.serving})
	}
	return g.Wait()
}

func (d *Daemon) stop(ctx context.Context) error {
	klog.FromContext(ctx).Info("Stopping; containers keep running")
	ctx = context.WithoutCancel(ctx)
	if d.api != nil && d.api.RestartReason() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, failedStop, errors.New("the cluster's data has failed"))
		defer cancel()
	}
	err := d.group.stop(ctx)
	if d.images != nil {
		err = errors.Join(err, d.images.Close())
	}
	return err
}

func (d *Daemon) openDirs() error {
	if err := checkDirs(d.cfg.DataDir, d.cfg.RunDir); err != nil {
		return err
	}
	dirs := []string{d.cfg.DataDir}
	if d.cfg.Role.HasNode() {
		dirs = append(dirs, d.cfg.ImagesDir(), d.cfg.ManifestDir)
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var err error
	if d.lock, err = lockInstance(d.cfg.DataDir); err != nil {
		return err
	}
	if err = record.Write(instanceFile(d.cfg.DataDir), 1, d.cfg); err == nil {
		d.fresh, err = openRunDir(d.cfg.RunDir, d.cfg.DataDir)
	}
	if err != nil {
		return errors.Join(err, d.lock.release())
	}
	return nil
}

// openRunDir puts the run dir on a tmpfs: what is there need not survive a reboot, and it is made
// and removed with every pod. Every user may search it, because the root of a pod with a user
// namespace is an ordinary user here. fresh reports whether the run dir was empty. A file in it
// names the data dir of the instance that owns it.
func openRunDir(dir, dataDir string) (fresh bool, err error) {
	if err := checkRunDir(dir, dataDir); err != nil {
		return false, err
	}
	if fresh, err = isFresh(dir); err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fresh, err
	}
	onTmpfs, err := mount.IsTmpfs(dir)
	if err == nil && !onTmpfs {
		err = mount.Tmpfs(dir, 0o711, 0)
	}
	if err != nil {
		return fresh, err
	}
	return fresh, errors.Join(os.Chmod(dir, 0o711), os.WriteFile(ownerFile(dir), []byte(dataDir+"\n"), 0o600))
}

// ownerFile is the file that names the data dir of the instance that owns a run dir.
func ownerFile(runDir string) string { return filepath.Join(runDir, "data-dir") }

// runDirOwner reads that file; "" if there is none.
func runDirOwner(runDir string) (string, error) {
	doc, err := os.ReadFile(ownerFile(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(doc)), err
}

// checkRunDir refuses another instance's run dir: what is mounted there belongs to that instance's
// pods.
func checkRunDir(runDir, dataDir string) error {
	owner, err := runDirOwner(runDir)
	if err != nil || owner == "" || owner == dataDir {
		return err
	}
	return fmt.Errorf("%s is the run dir of the instance with --data-dir %s; use the --run-dir of %s", runDir, owner, dataDir)
}

// ownAPIFlags are flags of the API server that a whole node sets itself.
var ownAPIFlags = map[string]string{
	"data-dir": "use --data-dir of the node", "bind-address": "use --bind-address of the node", "secure-port": "use --secure-port of the node",
	"advertise-address": "use --node-ip", "service-cluster-ip-range": "use --service-cidr", "cluster-domain": "use --cluster-domain of the node",
	"etcd-servers": "use --etcd-servers of the node", "encryption-provider-config": "use --encryption-provider-config of the node",
	"encryption-provider-config-automatic-reload": "use --encryption-provider-config-automatic-reload of the node",
	"cert-dir":       "the node's own kubeconfig and certificates are in pki of --data-dir",
	"client-ca-file": "the node's own clients have certificates of its own authority",
}

func (d *Daemon) startAPI(ctx, startCtx context.Context) error {
	d.progress("starting the API server")
	c := apiserver.DefaultConfig()
	c.DataDir, c.CertDir = d.cfg.DataDir, filepath.Join(d.cfg.DataDir, "pki")
	c.BindAddress, c.SecurePort = net.ParseIP(d.cfg.BindAddress), d.cfg.SecurePort
	nodeIPs := d.cfg.NodeIPs()
	c.AdvertiseAddress = nodeIPs[0].AsSlice()
	c.ClusterDomain = d.cfg.ClusterDomain
	c.EtcdServers = d.cfg.EtcdServers
	c.EncryptionConfig, c.EncryptionReload = d.cfg.EncryptionConfig, d.cfg.EncryptionReload
	c.GarbageCollector, c.NodesJoin = true, true
	c.LocalStorage = d.cfg.LocalStorage != config.NoStorage
	// Upstream's order starts with the name of the machine, which other machines may not be able to resolve.
	c.KubeletAddressTypes = []string{"InternalIP", "InternalDNS", "Hostname", "ExternalIP", "ExternalDNS"}
	c.Components = map[string]componentstatus.Check{"scheduler": componentstatus.Inside, "controller-manager": componentstatus.Inside}
	c.ServingNames = []string{d.cfg.NodeName, "localhost", "127.0.0.1"}
	for _, ip := range nodeIPs {
		c.ServingNames = append(c.ServingNames, ip.String())
	}
	c.PeerName, c.PeerAddress, c.Waiting = d.cfg.NodeName, d.peerAddress(), d.progress
	c.Paths = map[string]http.Handler{report.SchedulingPath: http.HandlerFunc(d.scheduling), cluster.ServersPath: http.HandlerFunc(d.welcome)}
	if d.several {
		c.Paths[tracePath] = http.HandlerFunc(d.serveTrace)
	}
	var err error
	if c.ServiceCIDRs, err = utilnet.ParseCIDRs(strings.Split(d.cfg.ServiceCIDR, ",")); err != nil {
		return err
	}
	c.Required = required(d.cfg.Proxy)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(flags)
	if err := flags.Set("enable-bootstrap-token-auth", "true"); err != nil { // nodes join by such tokens
		return err
	}
	if err := setFlags(flags, "the API server; `wherry apiserver --help` lists them", d.cfg.APIServerArgs, ownAPIFlags); err != nil {
		return fmt.Errorf("--apiserver-arg: %w", err)
	}
	if lost := c.LostData(); lost != "" {
		d.progress("WARNING: " + lost)
	}
	d.api, err = apiserver.New(ctx, c)
	if errors.Is(err, storage.ErrNoRoom) {
		return d.startWithRoom(startCtx, err)
	}
	if err != nil {
		return err
	}
	d.group.start(ctx, "apiserver", d.api.Run)
	if err := d.await(startCtx, "the API server", d.api.Ready()); err != nil {
		return err
	}
	d.serving.Store(d.api)
	return d.writeAdminKubeconfig()
}

// await waits until a component is ready, or something goes wrong. If that is the cluster's data,
// for which there was room to be opened but not to continue, no component will become ready.
func (d *Daemon) await(ctx context.Context, what string, ready <-chan struct{}) error {
	err := d.group.ready(ctx, what, ready, d.restartDue())
	if d.api == nil || err == nil {
		return err
	}
	reason := d.api.RestartReason()
	if errors.Is(reason, storage.ErrRemoved) {
		return reason
	}
	if reason != nil {
		return d.startWithRoom(ctx, reason)
	}
	return err
}

// restartDue is closed when the cluster's data has failed; never if they are not in this process.
func (d *Daemon) restartDue() <-chan struct{} {
	if d.api == nil {
		return nil
	}
	return d.api.RestartDue()
}

// startWithRoom gives up a start that failed for a full disk: another one is made as soon as there
// is room.
func (d *Daemon) startWithRoom(ctx context.Context, reason error) error {
	d.progress(fmt.Sprintf("waiting for %d MiB of free disk space: %v", restartRoom>>20, reason))
	// meanwhile, what has started may end with an error
	return cmp.Or(d.awaitRoom(ctx, newGroup()), errors.New("stopped while waiting for free disk space"))
}
