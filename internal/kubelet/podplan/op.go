package podplan

import "time"

// Kind of an op.
type Kind string

// The ops. Each is idempotent and safe to repeat after a crash at any moment.
const (
	EnsureCgroup    Kind = "EnsureCgroup"
	RemoveCgroup    Kind = "RemoveCgroup"
	MountVolume     Kind = "MountVolume"
	ClearVolumes    Kind = "ClearVolumes"
	RunSandbox      Kind = "RunSandbox"
	StopSandbox     Kind = "StopSandbox"
	RemoveSandbox   Kind = "RemoveSandbox"
	PullImage       Kind = "PullImage"
	CreateContainer Kind = "CreateContainer"
	StartContainer  Kind = "StartContainer"
	RunHook         Kind = "RunHook"
	// RunPreStop runs the preStop hook of an instance that is to stop, before StopContainer;
	// Deadline is when that comes although the hook has not returned.
	RunPreStop      Kind = "RunPreStop"
	StopContainer   Kind = "StopContainer"
	RemoveContainer Kind = "RemoveContainer"
	// ResizePod gives what runs the resources that are allocated; Attempt is Resize.Seq.
	ResizePod Kind = "ResizePod"
	// Forget removes the last traces, and the API object of a deleted pod.
	Forget Kind = "Forget"
)

// Key names what an op works on. At most one op of a key is in flight.
type Key string

// Op is one step for an executor: a small comparable value.
type Op struct {
	Kind Kind
	// Name of the volume or container.
	Name string `json:",omitempty"`
	// ID of the sandbox or container.
	ID string `json:",omitempty"`
	// SandboxID that a container is created in.
	SandboxID string `json:",omitempty"`
	Attempt   uint32 `json:",omitempty"`
	// Deadline by which StopContainer kills; zero kills at once. Of a hook, see RunPreStop.
	Deadline time.Time `json:",omitzero"`
	// Reason and Message tell why (for events).
	Reason  string `json:",omitempty"`
	Message string `json:",omitempty"`
	// Objects makes a refresh of a volume differ from the one before.
	Objects uint64 `json:",omitempty"`
	// Image to be pulled, as the spec has it.
	Image string `json:",omitempty"`
	// Backoff: an image must not be pulled now, only looked for.
	Backoff bool `json:",omitempty"`
}

// Key returns what the op works on.
func (o Op) Key() Key {
	switch o.Kind {
	case EnsureCgroup, RemoveCgroup:
		return "cgroup"
	case MountVolume:
		return VolumeKey(o.Name)
	case ClearVolumes:
		return "volumes"
	case RunSandbox:
		return SandboxKey
	case StopSandbox, RemoveSandbox:
		return Key("sandbox/" + o.ID)
	case PullImage:
		return ImageKey(o.Name, o.Image)
	case CreateContainer, StartContainer:
		return ContainerKey(o.Name)
	case ResizePod:
		return ResizeKey
	case RunHook:
		return Key("hook/" + o.ID)
	case RunPreStop:
		return PreStopKey(o.ID)
	case StopContainer:
		return StopKey(o.ID)
	case RemoveContainer:
		return Key("remove/" + o.ID)
	default:
		return Key("forget")
	}
}

// SandboxKey is the key of RunSandbox.
const SandboxKey Key = "sandbox"

// VolumeKey is the key of MountVolume.
func VolumeKey(volume string) Key { return Key("volume/" + volume) }

// ImageKey is the key of PullImage, for a container or a VolumeImage: another image in
// the spec has nothing to do with how the last one's pull went.
func ImageKey(container, image string) Key { return Key("image/" + container + "/" + image) }

// VolumeImage is the name under which the image of a volume is pulled; no container
// can have it.
func VolumeImage(volume string) string { return "volume/" + volume }

// ContainerKey is the key of CreateContainer and StartContainer.
func ContainerKey(container string) Key { return Key("container/" + container) }

// StopKey is the key of StopContainer.
func StopKey(id string) Key { return Key("stop/" + id) }

// PreStopKey is the key of RunPreStop.
func PreStopKey(id string) Key { return Key("prestop/" + id) }

// teardown tells whether the op takes things away; such an op does not hold the
// end of a pod up.
func (k Kind) teardown() bool {
	switch k {
	case RemoveCgroup, ClearVolumes, StopSandbox, RemoveSandbox, RunPreStop, StopContainer, RemoveContainer, Forget:
		return true
	default:
		return false
	}
}

// Result of an op.
type Result struct {
	Err error
	// Reason and Message are what the container's status says of a failure;
	// Message is Err's text when empty.
	Reason, Message string
	// Fatal: the same op would fail again until an object changes.
	Fatal bool
	// Image that a pull ensured.
	Image string
	// ImageGone: the image that a pull ensured is not on the node any more.
	ImageGone bool
	// Sandbox that was run.
	Sandbox string
	// RefreshAt is when a volume wants to be written again.
	RefreshAt time.Time
	// Resized is the Resize.Seq that was applied.
	Resized uint32
	// HookFailed is set when a postStart hook ran and failed.
	HookFailed string
}

// Life is where a pod stands.
type Life string

// A pod goes down this list and never up.
//
//	Pending ──> Running ──> Terminating ──> Terminated
//	   └──────────────────────┘ (refused, deleted before it ran)
const (
	PodPending     Life = "Pending"
	PodRunning     Life = "Running"
	PodTerminating Life = "Terminating"
	PodTerminated  Life = "Terminated"
)

// Plan is what Next decides: the ops that should be in flight from now on (those
// that are already, too), and when to look again although nothing happened.
type Plan struct {
	Life Life
	// Ops that should run. An op in flight that is not among them is to be cancelled.
	Ops []Op
	// RecheckAt is zero when only an event can change the plan.
	RecheckAt time.Time
	// Record to be written before any of the ops starts.
	Record Record
	// Probes to be run.
	Probes []ProbeTarget
	// Done: nothing is left of the pod, the worker can end.
	Done bool
	// Waiting says in plain words what the pod waits for.
	Waiting []string
}

// ProbeTarget is a container instance whose probes run.
type ProbeTarget struct {
	ID   string
	Name string
	// Since is when the instance started.
	Since time.Time
	// Started: it is known to have passed its startup probe.
	Started bool
	// Ending: only readiness goes on.
	Ending bool
}
