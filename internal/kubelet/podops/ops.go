// Package podops carries out the ops that plans contain, one verb per file. Each op is idempotent,
// reports what it does by events and spans, and returns soon after its context ends. Nothing here
// decides whether an op is due: podplan does.
package podops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	internalapi "k8s.io/cri-api/pkg/apis"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/identity"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/pullrecord"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/internal/trace"
)

// Recorder takes events; it must not block.
type Recorder interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Cgroups creates and removes control groups, by paths below the hierarchy's root.
type Cgroups interface {
	Ensure(path string, limits *specs.LinuxResources) error
	Remove(path string) error
	Kill(path string) error
	Exists(path string) bool
}

// Flusher waits until a pod's newest status is written.
type Flusher interface {
	Flush(ctx context.Context, uid types.UID) error
}

// CredentialPlugins return credentials for images; *credential.Plugins implements it.
type CredentialPlugins interface {
	For(ctx context.Context, pod *v1.Pod, image string) []credential.Credential
}

// PullRecords remember with which credentials images were pulled; *pullrecord.Records implements
// it.
type PullRecords interface {
	Begin(image string) error
	Failed(image string) error
	Pulled(image, id string, with pullrecord.Access) error
	MustPull(image, id string, has func() ([]pullrecord.Access, error)) (bool, error)
}

// Config is what ops need to know of the kubelet's configuration.
type Config struct {
	NodeName      string
	Dirs          criconfig.Dirs
	PodLogs       string
	ContainerLogs string
	Layout        criconfig.Layout
	PidsLimit     int64
	ClusterDNS    []string
	NoClusterDNS  bool
	ClusterDomain string
	ResolvConf    string
	// HostIPs are the node's addresses.
	HostIPs []string
	// SeccompDefault: RuntimeDefault applies where a pod says nothing.
	SeccompDefault bool
	// CFS is how CPU limits are enforced.
	CFS criconfig.CFS
	// MaxPulls is how many images are pulled at the same time; 0 for no limit.
	MaxPulls int
	// PullQPS is how many pulls may begin per second, 0 for no limit; PullBurst is how many may
	// begin at once.
	PullQPS, PullBurst int32
	// Swap that containers may use; nil if it cannot be limited.
	Swap *criconfig.Swap
	// MemoryQoS is what the kernel is told of the memory of pods; nil without cgroup v2.
	MemoryQoS *criconfig.MemoryQoS
	// OOMGroup: if a process of a container runs out of memory, all of them are killed.
	OOMGroup bool
	// Sysctls that all pods get, unless they set them themselves.
	Sysctls map[string]string
	// DockerConfig is a file with the node's registry credentials.
	DockerConfig string
}

// Claims prepares resource claims, and takes that back. *dra.Manager implements it.
type Claims interface {
	Prepare(ctx context.Context, pod *v1.Pod) error
	Unprepare(ctx context.Context, pod *v1.Pod) error
	// Left reports whether something may be prepared for the pod.
	Left(pod *v1.Pod) bool
	// Container returns the CDI devices that a container gets by the pod's claims.
	Container(pod *v1.Pod, c *v1.Container) ([]string, error)
}

// Node is what ops need to know of the node at the moment.
type Node struct {
	Memory      int64
	Allocatable v1.ResourceList
}

// Deps are the parts that ops work with.
type Deps struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	Client  kubernetes.Interface // nil without an API server
	Volumes *volume.Mounter
	// Plugged returns what device plugins want a container to have that is about to be started.
	Plugged func(ctx context.Context, grants []podplan.Grant) (criconfig.Plugged, error)
	// CPUs returns on which CPUs a container may run that is about to be created, "" for all; own are those that it has for
	// itself, which nobody else is on any more when it returns.
	CPUs func(ctx context.Context, own string) (string, error)
	// Claims prepares the devices of the pods' resource claims.
	Claims Claims
	Tokens *identity.TokenSource
	Users  UserNamespaces
	// Plugins return credentials for registries; nil if there are none.
	Plugins CredentialPlugins
	// Pulled, if not nil, knows who may use the images that are on the node.
	Pulled  PullRecords
	Objects *objectcache.Cache
	Cgroups Cgroups // nil: the runtime creates its own
	Events  Recorder
	Status  Flusher
	// Services returns all services that a pod may see; it waits until they are known,
	// except for a static pod, which runs without an API server.
	Services func(ctx context.Context, pod *v1.Pod) ([]*v1.Service, error)
	Node     func() Node
	// Dial makes the connections of HTTP hooks; nil for the usual way.
	Dial Dial
	// ImagePulled, if not nil, is called with the duration of a pull and the size of the image.
	ImagePulled func(time.Duration, uint64)
}

// Dial connects to a container.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Ops executes ops. It is safe for concurrent use.
type Ops struct {
	Config
	Deps
	hooks *http.Client
	// pulls has a slot for each pull that may run; nil for no limit.
	pulls chan struct{}
	// rate limits how often pulls begin; nil for no limit.
	rate flowcontrol.PassiveRateLimiter
}

// New returns Ops.
func New(cfg Config, deps Deps) *Ops {
	o := &Ops{Config: cfg, Deps: deps, hooks: newHookClient(deps.Dial)}
	if cfg.MaxPulls > 0 {
		o.pulls = make(chan struct{}, cfg.MaxPulls)
	}
	if cfg.PullQPS > 0 {
		o.rate = flowcontrol.NewTokenBucketPassiveRateLimiter(float32(cfg.PullQPS), int(cfg.PullBurst))
	}
	return o
}

// spanNames has the name of each op's span.
var spanNames = map[podplan.Kind]string{
	podplan.EnsureCgroup:    "kubelet: make cgroup",
	podplan.RemoveCgroup:    "kubelet: remove cgroup",
	podplan.MountVolume:     "kubelet: mount volumes",
	podplan.ClearVolumes:    "kubelet: unmount volumes",
	podplan.UnprepareClaims: "kubelet: give devices back",
	podplan.RunSandbox:      "kubelet: run sandbox",
	podplan.StopSandbox:     "kubelet: stop sandbox",
	podplan.RemoveSandbox:   "kubelet: remove sandbox",
	podplan.PullImage:       "kubelet: pull image",
	podplan.CreateContainer: "kubelet: create container",
	podplan.StartContainer:  "kubelet: start container",
	podplan.RunHook:         "kubelet: run postStart hook",
	podplan.RunPreStop:      "kubelet: run preStop hook",
	podplan.StopContainer:   "kubelet: stop container",
	podplan.RemoveContainer: "kubelet: remove container",
	podplan.ResizePod:       "kubelet: resize pod",
	podplan.Forget:          "kubelet: delete pod",
}

// Do executes one op.
func (o *Ops) Do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	ctx, span := trace.Start(ctx, spanNames[op.Kind])
	if pod := podplan.WithAllocated(in.Pod, in.Record.Verdict); pod != in.Pod {
		with := *in
		with.Pod = pod
		in = &with
	}
	res := o.do(ctx, op, in)
	_ = trace.End(span, res.Err)
	if h := in.Pod.Spec.HostUsers; h != nil && !*h {
		countUserNamespace(op.Kind, res.Err)
	}
	return res
}

// countUserNamespace counts the outcome for a pod with a user namespace of its own: only when its
// containers are created does it show that the namespace does not work.
func countUserNamespace(kind podplan.Kind, err error) {
	switch kind {
	case podplan.RunSandbox:
		metrics.StartedUserNamespaces.Inc()
	case podplan.CreateContainer, podplan.StartContainer:
	default:
		return
	}
	if err != nil {
		metrics.StartedUserNamespaceErrors.Inc()
	}
}

func (o *Ops) do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	switch op.Kind {
	case podplan.EnsureCgroup:
		return o.ensureCgroup(in)
	case podplan.RemoveCgroup:
		return o.removeCgroup(in)
	case podplan.MountVolume:
		return o.mountVolume(ctx, op, in)
	case podplan.ClearVolumes:
		return failed(o.Volumes.Clear(ctx, in.Pod.UID))
	case podplan.UnprepareClaims:
		return o.unprepareClaims(ctx, in)
	case podplan.RunSandbox:
		return o.runSandbox(ctx, op, in)
	case podplan.StopSandbox:
		return failed(o.Runtime.StopPodSandbox(ctx, op.ID))
	case podplan.RemoveSandbox:
		return o.removeSandbox(ctx, op, in)
	case podplan.PullImage:
		return o.pullImage(ctx, op, in)
	case podplan.CreateContainer:
		return o.createContainer(ctx, op, in)
	case podplan.StartContainer:
		return o.startContainer(ctx, op, in)
	case podplan.RunHook:
		return o.runHook(ctx, op, in)
	case podplan.ResizePod:
		return o.resizePod(ctx, op, in)
	case podplan.RunPreStop:
		return o.runPreStop(ctx, op, in)
	case podplan.StopContainer:
		return o.stopContainer(ctx, op, in)
	case podplan.RemoveContainer:
		return o.removeContainer(ctx, op, in)
	case podplan.Forget:
		return o.forget(ctx, in)
	default:
		return failed(fmt.Errorf("unknown operation %q", op.Kind))
	}
}

func failed(err error) podplan.Result { return podplan.Result{Err: err} }

// event records an event about the pod.
func (o *Ops) event(pod *v1.Pod, kind, reason, format string, args ...any) {
	o.Events.Eventf(pod, kind, reason, format, args...)
}

// containerEvent records an event about one container of the pod.
func (o *Ops) containerEvent(pod *v1.Pod, name, kind, reason, format string, args ...any) {
	o.Events.Eventf(pods.ContainerRef(pod, name), kind, reason, format, args...)
}

func (o *Ops) ensureCgroup(in *podplan.Input) podplan.Result {
	pod := in.Pod
	if r := in.Record.Resize; r != nil && r.Active != nil {
		pod = podplan.WithApplied(pod, &in.Record) // the resize goes step by step itself
	}
	limits := criconfig.PodCgroupResources(pod, o.PidsLimit, o.CFS)
	if v := in.Record.Verdict; v != nil && len(v.CPUs) > 0 && limits.CPU != nil {
		limits.CPU.Quota, limits.CPU.Period = nil, nil // its containers have CPUs of their own
	}
	limits.HugepageLimits = criconfig.PodHugePages(pod, criconfig.PageSizes(o.Node().Allocatable))
	limits.Unified = o.MemoryQoS.Pod(pod)
	err := o.Cgroups.Ensure(o.Layout.Pod(in.Pod), limits)
	if err != nil {
		o.event(in.Pod, v1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: %v", err)
	}
	return failed(err)
}

// allocatableMemory returns the node's memory for pods, in bytes.
func (o *Ops) allocatableMemory() int64 {
	node := o.Node()
	return node.Allocatable.Memory().Value()
}

func (o *Ops) removeCgroup(in *podplan.Input) podplan.Result {
	for _, path := range o.Layout.Candidates(string(in.Pod.UID)) {
		if !o.Cgroups.Exists(path) {
			continue
		}
		if err := o.Cgroups.Kill(path); err != nil {
			return failed(err)
		}
		if err := o.Cgroups.Remove(path); err != nil {
			return failed(err)
		}
	}
	return podplan.Result{}
}

// Residue returns what is left of a pod besides its sandboxes.
func (o *Ops) Residue(pod *v1.Pod) podplan.Residue {
	r := podplan.Residue{Volumes: o.Volumes.Left(pod.UID), Claims: o.Claims.Left(pod)}
	if o.Cgroups != nil {
		for _, path := range o.Layout.Candidates(string(pod.UID)) {
			r.Cgroup = r.Cgroup || o.Cgroups.Exists(path)
		}
	}
	return r
}

func (o *Ops) mountVolume(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	if err := os.MkdirAll(o.Dirs.Pod(in.Pod.UID), 0o750); err != nil {
		return failed(err)
	}
	mount := o.Volumes.Mount
	if in.Volumes[op.Name].Mounted {
		mount = o.Volumes.Renew
	}
	refresh, err := mount(ctx, in.Pod, op.Name)
	if err != nil && ctx.Err() == nil {
		reason, first := "FailedMount", in.Failures[op.Key()].Count == 0
		f, ok := errors.AsType[*volume.Failure](err)
		if ok {
			reason = f.Reason
		}
		if !ok || !f.Early || !first { // no user needs to hear of what is over at the next try
			o.event(in.Pod, v1.EventTypeWarning, reason, "%v", err)
		}
	}
	return podplan.Result{Err: err, RefreshAt: refresh.Round(0)}
}
