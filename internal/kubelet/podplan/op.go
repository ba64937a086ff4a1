package podplan

import "time"

// Kind is the kind of an op.
type Kind string

// The ops. Each is idempotent and safe to repeat after a crash at any moment.
const (
	EnsureCgroup Kind = "EnsureCgroup"
	RemoveCgroup Kind = "RemoveCgroup"
	MountVolume  Kind = "MountVolume"
	ClearVolumes Kind = "ClearVolumes"
	// UnprepareClaims has drivers take back what they prepared of the pod's resource claims, for RunSandbox.
	UnprepareClaims Kind = "UnprepareClaims"
	RunSandbox      Kind = "RunSandbox"
	StopSandbox     Kind = "StopSandbox"
	RemoveSandbox   Kind = "RemoveSandbox"
	PullImage       Kind = "PullImage"
	CreateContainer Kind = "CreateContainer"
	StartContainer  Kind = "StartContainer"
	RunHook         Kind = "RunHook"
	// RunPreStop runs the preStop hook of an instance before StopContainer; Deadline is when
	// StopContainer follows even if the hook has not returned.
	RunPreStop      Kind = "RunPreStop"
	StopContainer   Kind = "StopContainer"
	RemoveContainer Kind = "RemoveContainer"
	// ResizePod applies the allocated resources to what runs; Attempt is Resize.Seq.
	ResizePod Kind = "ResizePod"
	// Forget removes the last traces of a pod, and the API object if it was deleted.
	Forget Kind = "Forget"
)

// Key names what an op works on. At most one op per key is in flight.
type Key string

// Op is one step for an executor: a small comparable value.
type Op struct {
	Kind Kind
	// Name of the volume or container.
	Name string `json:",omitempty"`
	// ID of the sandbox or container.
	ID string `json:",omitempty"`
	// SandboxID is the sandbox in which a container is created.
	SandboxID string `json:",omitempty"`
	Attempt   uint32 `json:",omitempty"`
	// Deadline by which StopContainer kills; zero kills at once. For a hook, see RunPreStop.
	Deadline time.Time `json:",omitzero"`
	// Reason and Message say why (for events).
	Reason  string `json:",omitempty"`
	Message string `json:",omitempty"`
	// Objects makes a refresh of a volume differ from the previous one.
	Objects uint64 `json:",omitempty"`
	// Image to be pulled, as the spec writes it.
	Image string `json:",omitempty"`
	// Backoff: the image must not be pulled now, only looked for on the node.
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
	case UnprepareClaims:
		return "claims"
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

// ImageKey is the key of PullImage, for a container or a VolumeImage. It has the image in it
// because how the pull of one image went says nothing about another.
func ImageKey(container, image string) Key { return Key("image/" + container + "/" + image) }

// VolumeImage is the name under which the image of a volume is pulled; no container can have that
// name.
func VolumeImage(volume string) string { return "volume/" + volume }

// ContainerKey is the key of CreateContainer and StartContainer.
func ContainerKey(container string) Key { return Key("container/" + container) }

// StopKey is the key of StopContainer.
func StopKey(id string) Key { return Key("stop/" + id) }

// PreStopKey is the key of RunPreStop.
func PreStopKey(id string) Key { return Key("prestop/" + id) }

// teardown reports whether the op removes or stops something. Such an op does not hold up the end
// of a pod.
func (k Kind) teardown() bool {
	switch k {
	case RemoveCgroup, ClearVolumes, UnprepareClaims, StopSandbox, RemoveSandbox, RunPreStop, StopContainer, RemoveContainer, Forget:
		return true
	default:
		return false
	}
}

// Result is the outcome of an op.
type Result struct {
	Err error
	// Reason and Message are what the container's status says about a failure. An empty Message
	// stands for Err's text.
	Reason, Message string
	// Fatal: the same op would fail again until an object changes.
	Fatal bool
	// Image that a pull made sure is present.
	Image string
	// ImageGone: an image that an earlier pull made sure of is no longer on the node.
	ImageGone bool
	// Sandbox that was run.
	Sandbox string
	// RefreshAt is when a volume has to be written again.
	RefreshAt time.Time
	// Resized is the Resize.Seq that was applied.
	Resized uint32
	// HookFailed is set when a postStart hook ran and failed.
	HookFailed string
}

// Life is the stage of a pod's life.
type Life string

// A pod moves down this list and never back up.
//
//	Pending ──> Running ──> Terminating ──> Terminated
//	   └──────────────────────┘ (refused, deleted before it ran)
const (
	PodPending     Life = "Pending"
	PodRunning     Life = "Running"
	PodTerminating Life = "Terminating"
	PodTerminated  Life = "Terminated"
)

// Plan is what Next decides: the ops that should be in flight from now on (including those that
// already are), and when to look again if nothing happens before.
type Plan struct {
	Life Life
	// Ops that should run. An op in flight that is not among them must be canceled.
	Ops []Op
	// RecheckAt is zero when only an event can change the plan.
	RecheckAt time.Time
	// Record has to be written before any of the ops starts.
	Record Record
	// Probes to be run.
	Probes []ProbeTarget
	// Done: nothing is left of the pod, and the worker can end.
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
	// Ending: only the readiness probe continues.
	Ending bool
}
