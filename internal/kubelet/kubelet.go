package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/version"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/dra"
	"wherry.dev/internal/kubelet/events"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/host"
	"wherry.dev/internal/kubelet/identity"
	"wherry.dev/internal/kubelet/imagegc"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/nodestatus"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/orphans"
	"wherry.dev/internal/kubelet/pleg"
	"wherry.dev/internal/kubelet/podcgroups"
	"wherry.dev/internal/kubelet/podops"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podsource"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/prober"
	"wherry.dev/internal/kubelet/pullrecord"
	"wherry.dev/internal/kubelet/shutdown"
	"wherry.dev/internal/kubelet/staticpod"
	"wherry.dev/internal/kubelet/status"
	"wherry.dev/internal/kubelet/storagelimit"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/internal/kubelet/volumehealth"
	"wherry.dev/internal/mount"
)

// Cgroups creates and removes control groups; paths are relative to the root of the hierarchies.
// *cgroup.Tree implements it.
type Cgroups interface {
	Ensure(path string, limits *specs.LinuxResources) error
	Remove(path string) error
	Kill(path string) error
	Exists(path string) bool
	Children(path string) ([]string, error)
}

// Deps are the parts of the outside world that a kubelet works with.
type Deps struct {
	// Client of the API server, as system:node:<name>. Nil: static pods only.
	Client  kubernetes.Interface
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	// Cgroups, if nil, leaves pod cgroups to the runtime.
	Cgroups Cgroups
	// WatchMemory, if not nil, has the kernel tell when memory runs short.
	WatchMemory eviction.WatchMemory
	// Share, if not nil, has what is mounted in the kubelet's folder appear to containers that were given it with mount
	// propagation, and what they mount there to the machine, as CSI drivers do it; mount.Share implements it.
	Share func(dir string) error
	// KernelLog, if not nil, opens the kernel's log, to tell of processes that were killed because the machine had no memory
	// left; oom.KernelLog implements it.
	KernelLog func() (io.ReadCloser, error)
	// Trace, if not nil, returns the steps in the life of a pod, by its UID, for whoever may read the kubelet's reports.
	Trace func(uid string) (trace any, ok bool)
	// Volumes, if not nil, serves the disk of volumes of the class local to whoever may use the kubelet (package localvolume).
	Volumes http.Handler
	// Annotations are given to the Node.
	Annotations map[string]string
}

// Kubelet is the node agent.
type Kubelet struct {
	cfg  config.Config
	deps Deps
	dirs criconfig.Dirs

	table    *podworker.Table
	records  *podworker.Records
	objects  *objectcache.Cache
	status   *status.Manager
	devices  *devices.Manager
	claims   *dra.Manager
	cpus     *cpus.Manager // nil: the policy none
	memory   *memory.Manager
	numa     *numa.Manager
	keeper   *cpus.Keeper
	node     *nodestatus.Reporter
	ops      *podops.Ops
	prober   *prober.Manager
	events   *events.Recorder
	services *podsource.Services
	statics  *staticpod.Pods
	rotator  *logs.Rotator
	groups   *podcgroups.Groups
	pleg     *pleg.Generator
	pulled   *pullrecord.Records
	images   atomic.Pointer[imagegc.Collector]
	limits   atomic.Pointer[storagelimit.Enforcer]
	orphans  *orphans.Orphans
	volumes  *volume.Mounter
	health   *volumehealth.Manager // nil if it is not asked for
	sources  *podsource.Awaited
	podRange *podRange
	hostIPs  []string
	runtime  string // name, for container IDs
	layout   criconfig.Layout

	conditions admission.Conditions
	admission  *admission.Admission
	// ran has the pods that had a sandbox when the kubelet started.
	ran map[types.UID]bool

	ready chan struct{}
	// registered is closed when the API server knows the node.
	registered chan struct{}
	serves     chan struct{} // closed when the runtime has answered and the server serves

	listener, readOnly, healthz net.Listener
	// identity and serving are certificates signed by the API server; nil if it signs none.
	identity, serving *certificates.Manager

	// What tests replace.
	dialLogind func(context.Context) (shutdown.Login, error)
	watchLogs  func() (logs.Watcher, error)
	// watchPlugins is false in tests in virtual time, which sockets would stop.
	watchPlugins bool
}

// New checks the configuration and builds a kubelet. Nothing runs yet; only Run contacts the
// runtime.
func New(cfg config.Config, deps Deps) (*Kubelet, error) {
	if deps.Runtime == nil || deps.Images == nil {
		return nil, errors.New("kubelet: no container runtime is set")
	}
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("kubelet configuration: %w", err)
	}
	if !ptr.Deref(cfg.CgroupsPerQOS, true) {
		deps.Cgroups = nil
	}
	k := &Kubelet{
		cfg: cfg, deps: deps, dirs: criconfig.Dirs{Root: cfg.RootDir}, ready: make(chan struct{}), registered: make(chan struct{}), serves: make(chan struct{}),
		events:     &events.Recorder{Node: cfg.NodeName, Client: deps.Client, QPS: float32(ptr.Deref(cfg.EventRecordQPS, 0)), Burst: int(cfg.EventBurst)},
		services:   podsource.NewServices(deps.Client),
		dialLogind: shutdown.Logind, watchLogs: func() (logs.Watcher, error) { return logs.NewWatch() }, watchPlugins: true,
	}
	k.sources, k.podRange = k.awaitSources(), newPodRange()
	var err error
	if k.hostIPs, err = nodestatus.HostIP(cfg.NodeIP); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	// Manifests of CSI drivers count on the folder of plugins, as upstream makes it.
	for _, dir := range []string{cfg.RootDir, k.dirs.Pods(), filepath.Join(cfg.RootDir, "plugins")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if err := os.MkdirAll(k.checkpoints(), 0o700); err != nil { // they contain the containers' memory
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	for _, dir := range []string{cfg.PodLogsDir, cfg.ContainerLogsDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if k.records, err = podworker.OpenRecords(k.dirs.Records()); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

// Ready is closed when the node is registered and reported as ready or, without an API server, when
// the sources have synced.
func (k *Kubelet) Ready() <-chan struct{} { return k.ready }

// Registered is closed when the API server knows the node, which may not be Ready: it has no network, say.
func (k *Kubelet) Registered() <-chan struct{} { return k.registered }

// Serves is closed when the runtime has answered and the server accepts requests. The node may
// still be waiting for its API server or its network, and those may be waiting for its pods.
func (k *Kubelet) Serves() <-chan struct{} { return k.serves }

// share shares what is mounted in the kubelet's folder.
func (k *Kubelet) share(ctx context.Context) error {
	if k.deps.Share == nil {
		return nil
	}
	err := k.deps.Share(k.cfg.RootDir)
	if errors.Is(err, mount.ErrMountsBelow) {
		klog.FromContext(ctx).Info("Warning: pods of an earlier version have mounts in the kubelet's folder: until it is started without "+
			"any, containers that mount something there for others do not start", "err", err)
		return nil
	}
	return err
}

// Healthy returns an error if the kubelet is not healthy. An unreachable API server does not count:
// whoever brings up a control plane from static pods waits for this first.
func (k *Kubelet) Healthy() error {
	select {
	case <-k.serves:
		return k.pleg.Healthy()
	default:
		return nil // it is still starting
	}
}

// build creates the parts, once the runtime has answered. Each part is given only what exists by then.
func (k *Kubelet) build(ctx context.Context) error {
	k.deps.Runtime = metrics.Runtime{RuntimeService: k.deps.Runtime}
	k.deps.Images = metrics.Images{ImageManagerService: k.deps.Images}
	rt, err := k.waitRuntime(ctx)
	if err != nil {
		return err
	}
	k.runtime = rt.RuntimeName
	k.layout = criconfig.Layout{Root: k.cfg.CgroupRoot, Systemd: k.systemd(ctx)}
	nodes, err := k.buildNUMA()
	if err := errors.Join(err, k.buildCPUs()); err != nil {
		return err
	}
	if k.devices, err = k.newDevices(nodes); err != nil {
		return err
	}
	if err := k.buildNode(rt); err != nil {
		return err
	}
	pods := podworker.NewPods()
	if err := k.buildOps(ctx, pods); err != nil {
		return err
	}
	k.groups = podcgroups.New(podcgroups.Config{
		Tree: k.deps.Cgroups, Layout: k.layout, Kubelet: k.cfg, MemoryQoS: podcgroups.MemoryQoS(&k.cfg), Node: k.node.Node, Events: k.events, Ref: k.node.Ref,
	})
	k.prober = prober.New(k.deps.Runtime, k.events, pods.Wake, metrics.ProbeMeter{})
	k.admission = admission.New(k.admissionConfig(), pods)
	cpus.Report(k.cpus, k.admission.HeldCPUs)
	if k.rotator, err = k.newRotator(pods); err != nil {
		return err
	}
	k.buildTable(pods)
	k.statics = staticpod.New(staticpod.Deps{
		Table: k.table, Status: k.status, Client: k.deps.Client, Node: k.node.Node, Listed: func() bool { return !k.sources.Waits(fromAPI) }, Settled: k.table.IsSynced,
	})
	k.sources.Then(func() { // pods that no source has are absent
		k.table.Synced()
		k.statics.Poke()
	})
	k.orphans = orphans.New(orphans.Deps{Runtime: k.deps.Runtime, Records: k.records, Dirs: k.dirs, Groups: k.groups.Pods, Table: k.table})
	k.pleg = pleg.New(pleg.Deps{Runtime: k.deps.Runtime, Table: k.table, Adopt: k.orphans.Adopt})
	return k.groups.Ensure(ctx)
}

func (k *Kubelet) buildNode(rt *runtimeapi.VersionResponse) error {
	memory, storage, err := nodestatus.Capacity(k.cfg.RootDir)
	if err != nil {
		return err
	}
	reserved, err := k.cfg.Reserved(memory, storage)
	if err != nil {
		return err
	}
	k.node, err = nodestatus.New(nodestatus.Config{
		Name: k.cfg.NodeName, IPs: k.hostIPs, Hostname: k.cfg.NodeName, Labels: k.cfg.NodeLabels, Taints: k.cfg.RegisterWithTaints,
		PodCIDR: k.cfg.PodCIDR, Provider: k.cfg.ProviderID, Register: ptr.Deref(k.cfg.RegisterNode, true),
		ExternalCloud: k.cfg.CloudProvider == "external", GivenIPs: k.cfg.NodeIP, Features: admission.Features,
		NoLocalStorage: !ptr.Deref(k.cfg.LocalStorageCapacityIsolation, true),
		Unschedulable:  !k.cfg.RegisterSchedulable, MaxPods: k.cfg.PodLimit(int64(goruntime.NumCPU())), Reserved: reserved, RootDir: k.cfg.RootDir,
		RuntimeVersion: rt.RuntimeName + "://" + rt.RuntimeVersion, KubeletVersion: version.Get().GitVersion,
		Port: k.port, ReportEvery: k.cfg.NodeStatusReportFrequency.Duration, LeaseSeconds: k.cfg.NodeLeaseDurationSeconds,
		MaxImages: int(ptr.Deref(k.cfg.NodeStatusMaxImages, 50)), Trouble: k.trouble, Pressure: k.conditions.Pressure.Has,
		VolumesInUse: k.volumesInUse, Devices: k.devices.Resources, Annotations: k.deps.Annotations,
	}, k.deps.Client, k.deps.Runtime, k.deps.Images, k.events)
	return err
}

// buildOps creates what carries out the pods' operations, and what that needs.
func (k *Kubelet) buildOps(ctx context.Context, pods *podworker.Pods) error {
	k.objects = objectcache.New(k.deps.Client, pods.ObjectChanged)
	k.status = status.New(k.deps.Client, func(d time.Duration) { metrics.StatusSync.Observe(d.Seconds()) })
	tokens := identity.NewTokenSource(k.deps.Client)
	users, err := k.userNamespaces(ctx)
	if err != nil {
		return err
	}
	plugins, err := k.credentialPlugins(tokens)
	if err != nil {
		return err
	}
	k.pulled, err = pullrecord.Open(filepath.Join(k.cfg.RootDir, "image_manager"), k.cfg.ImagePullCredentialsVerificationPolicy, k.cfg.PreloadedImagesVerificationAllowlist)
	if err != nil {
		return err
	}
	k.volumes = k.mounter(pods, tokens)
	k.health = k.volumeHealth()
	if k.claims, err = k.newClaims(pods); err != nil {
		return err
	}
	k.ops = podops.New(k.opsConfig(), podops.Deps{
		Runtime: k.deps.Runtime, Images: k.deps.Images, Client: k.deps.Client, Tokens: tokens, Objects: k.objects, Users: users, Plugins: plugins, Pulled: k.pulled,
		Volumes: k.volumes, Plugged: k.devices.Container, Claims: k.claims, CPUs: k.cpusOf,
		Cgroups: k.deps.Cgroups, Events: k.events, Status: k.status, Services: k.services.List,
		Node: func() podops.Node {
			return podops.Node{Memory: k.node.Memory(), Allocatable: k.node.Node().Status.Allocatable}
		},
		ImagePulled: func(took time.Duration, size uint64) {
			metrics.ImagePull.WithLabelValues(metrics.SizeBucket(size)).Observe(took.Seconds())
			k.node.Trigger()
		},
	})
	return nil
}

// mounter returns what sets up volumes.
func (k *Kubelet) mounter(pods *podworker.Pods, tokens *identity.TokenSource) *volume.Mounter {
	m := &volume.Mounter{
		Dirs: k.dirs, Objects: func(ctx context.Context) volume.Objects { return k.objects.For(ctx) },
		Bundles: func(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error) {
			return k.objects.For(ctx).TrustBundles()
		},
		Certificates: identity.NewCertificateSource(k.deps.Client, k.node.Node),
		Tokens:       tokens, NodeName: k.cfg.NodeName, Allocatable: func() v1.ResourceList { return k.node.Node().Status.Allocatable },
		NodeLabels: func() map[string]string { return k.node.Node().Labels }, Freed: pods.ObjectChanged,
		Warn: func(pod *v1.Pod, reason, message string) {
			k.events.Eventf(pod, v1.EventTypeWarning, reason, "%s", message)
		},
		Tell: func(pod *v1.Pod, reason, message string) {
			k.events.Eventf(pod, v1.EventTypeNormal, reason, "%s", message)
		},
		Reject: func(pod *v1.Pod, reason, message string) {
			v := podplan.Verdict{Reason: reason, Message: message}
			k.refused(pod, v)
			pods.Evict(pod.UID, podplan.Rejected(v, time.Now().Round(0).UTC()))
		},
		CSI: k.csiVolumes(),
	}
	if k.deps.Client != nil {
		m.Attached = &volume.Attached{Report: k.node.Trigger, Written: k.node.Written}
		m.Volume = func(ctx context.Context, name string) (*v1.PersistentVolume, error) {
			return k.deps.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		}
	}
	return m
}

// buildTable creates the table of the pods' workers.
func (k *Kubelet) buildTable(pods *podworker.Pods) {
	var volumeHealth func(*v1.Pod, []v1.PodVolumeHealth) []v1.PodVolumeHealth
	if k.health != nil {
		volumeHealth = k.health.Of
	}
	k.table = podworker.NewTable(pods, podworker.Deps{
		Prober: k.prober, VolumeHealth: volumeHealth,
		Health: k.devices.Health, ClaimHealth: k.claims.Health,
		Runtime: k.deps.Runtime, Executor: k.ops, Status: k.status, Records: k.records, Admission: k.admission,
		Residue: k.ops.Residue, FinalMessage: k.ops.FinalMessage, Node: k.planNode, Tell: k.ops.Tell, TellPod: k.ops.TellPod,
		Ran: func() {
			k.rotator.Look()
			k.keeper.Poke()
		},
		Left: func() { k.statics.Poke() },
		Mirror: func(static types.UID) (*v1.PodStatus, bool) {
			if k.sources.Waits(fromAPI) {
				return nil, false
			}
			return k.status.Mirror(static), true
		},
		Stepped: func(d time.Duration) { metrics.PodWorker.WithLabelValues("sync").Observe(d.Seconds()) },
		Began:   func(d time.Duration) { metrics.PodWorkerStart.Observe(d.Seconds()) },
		Started: metrics.ObservePodStart,
		Ended: func(kind string, end *v1.ContainerStateTerminated) {
			metrics.TerminatedContainers.WithLabelValues(kind, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		},
	})
}

func (k *Kubelet) opsConfig() podops.Config {
	return podops.Config{
		NodeName: k.cfg.NodeName, Dirs: k.dirs, PodLogs: k.cfg.PodLogsDir, ContainerLogs: k.cfg.ContainerLogsDir,
		Layout: k.layout, PidsLimit: ptr.Deref(k.cfg.PodPidsLimit, -1), ClusterDNS: k.cfg.ClusterDNS, NoClusterDNS: k.cfg.NoClusterDNS,
		ClusterDomain: k.cfg.ClusterDomain, HostIPs: k.hostIPs, ResolvConf: ptr.Deref(k.cfg.ResolverConfig, ""),
		SeccompDefault: ptr.Deref(k.cfg.SeccompDefault, false), CFS: criconfig.CFS{Off: !ptr.Deref(k.cfg.CPUCFSQuota, true), Period: k.cfg.CPUCFSQuotaPeriod.Duration},
		MaxPulls: k.maxPulls(), PullQPS: ptr.Deref(k.cfg.RegistryPullQPS, 0), PullBurst: k.cfg.RegistryBurst, Swap: podcgroups.Swap(&k.cfg, k.node.Node()),
		MemoryQoS: podcgroups.MemoryQoS(&k.cfg), OOMGroup: podcgroups.OOMGroup(&k.cfg), Sysctls: k.cfg.DefaultPodSysctls, DockerConfig: filepath.Join(k.cfg.RootDir, "config.json"),
	}
}

// shutdown returns what ends the pods before the machine shuts down.
func (k *Kubelet) shutdown() *shutdown.Manager {
	return &shutdown.Manager{
		Periods: shutdown.Periods(&k.cfg.KubeletConfiguration), Dir: k.cfg.RootDir, Dial: k.dialLogind,
		Node: &shutdown.Pods{
			Table: k.table, GoingDown: &k.conditions.GoingDown, Changed: k.node.Trigger, Events: k.events, Ref: k.node.Ref,
		},
	}
}

// followShares gives the Burstable pods together the CPU shares that they ask for.
func (k *Kubelet) followShares(ctx context.Context) error {
	return k.groups.Run(ctx, k.admission.Holding)
}

// planNode returns the facts about the node that plans depend on.
func (k *Kubelet) planNode() podplan.Node {
	n := podplan.Node{HostIPs: k.hostIPs, RuntimeName: k.runtime, CgroupsManaged: k.deps.Cgroups != nil}
	if d := k.cfg.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
		n.MaxCrashWait = d.Duration
	}
	return n
}

// Run runs the node until the context ends, and returns when everything that it started is gone.
// Containers keep running; the next Run finds them.
func (k *Kubelet) Run(ctx context.Context) error {
	if err := host.Check(klog.FromContext(ctx), &k.cfg); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := k.share(ctx); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	metrics.Register()
	untrace, err := k.exportTraces(ctx)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	defer untrace()
	if err := k.listen(); err != nil {
		k.closeListeners()
		return fmt.Errorf("kubelet: %w", err)
	}
	defer k.closeListeners()
	k.events.Start()
	defer k.events.Stop()
	if err := k.build(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("kubelet: %w", err)
	}
	if k.numa != nil {
		metrics.BeginAlignments()
	}
	if k.ran, err = k.orphans.AdoptAll(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("kubelet: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		k.objects.Run, k.status.Run, k.table.Run, k.node.Run, k.node.RunLease, k.pleg.Watch, k.pleg.Relist, k.rotator.Run, k.shutdown().Run,
		k.tellReady, k.tellPodRange, k.findPlugins, k.followLimits, k.watchVolumes, k.volumes.Run, k.removeSlices, k.watchOOM, k.runDevices, k.tellResources, k.tellPods,
		k.afterSources(k.keepCPUs), k.afterSources(k.orphans.Run), k.afterSources(k.followShares), k.afterSources(k.guardNode),
	} {
		g.Go(func() error { return run(ctx) })
	}
	k.runSources(ctx, g)
	err = k.rotateCertificates(ctx, g)
	if err == nil {
		err = k.serve(ctx, g)
	}
	if err != nil {
		g.Go(func() error { return fmt.Errorf("kubelet: %w", err) })
	} else {
		close(k.serves)
	}
	err = errors.Join(g.Wait(), k.claims.Close())
	k.prober.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// tellReady closes Registered and Ready at the right moments.
func (k *Kubelet) tellReady(ctx context.Context) error {
	await := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if await(k.node.Reported()) {
		close(k.registered)
		if await(k.node.Ready()) && await(k.sources.All()) {
			close(k.ready)
		}
	}
	return nil
}
