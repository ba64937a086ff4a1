package podplan

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Input is everything that a decision about one pod depends on.
type Input struct {
	// Pod is what the source wants. For an orphan it holds only what the runtime's
	// labels tell: name, namespace, UID and grace period.
	Pod *v1.Pod
	// Absent: all sources have synced and none of them has the pod.
	Absent bool
	// Record is the durable part; the plan returns its successor.
	Record Record

	Sandboxes  []Sandbox
	Containers []Container
	// Volumes has an entry for each volume that was set up in this worker's life.
	Volumes map[string]Volume
	// Residue tells what a pod that ends has left on the node.
	Residue Residue
	// Forgotten: the last traces are gone, and the API object of a deleted pod.
	Forgotten bool
	// CgroupReady: the pod's cgroup exists with its limits.
	CgroupReady bool
	// Images has an entry for each container whose image is ensured for an attempt.
	Images map[string]Image
	// Probes by container ID.
	Probes map[string]Probe
	// Hooks has the outcome of postStart by container ID.
	Hooks map[string]Hook
	// PreStops has the preStop hooks that are over, by container ID.
	PreStops map[string]Op
	// Resized is the newest Resize.Seq that was applied to all that runs.
	Resized uint32

	InFlight map[Key]Flight
	Failures map[Key]Failure
	// Objects counts the changes of the objects that the pod refers to.
	Objects uint64
	// Reported is the newest status that was put or, at first, the source's.
	Reported v1.PodStatus
	Node     Node
}

// Node is what a plan needs to know about the node.
type Node struct {
	HostIPs        []string
	RuntimeName    string
	MaxCrashWait   time.Duration // cap of the crash back-off, 0 is the default of 5 minutes
	CgroupsManaged bool
}

// Sandbox is a pod sandbox as observed.
type Sandbox struct {
	ID      string
	Attempt uint32
	Ready   bool
	Created time.Time
	IPs     []string
}

// State of a container, as the CRI has it.
type State string

// The states of a container.
const (
	Created State = "Created"
	Running State = "Running"
	Exited  State = "Exited"
	Unknown State = "Unknown"
)

// Container is one instance of a container as observed.
type Container struct {
	ID        string
	Name      string
	SandboxID string
	Attempt   uint32
	State     State
	Created   time.Time
	Started   time.Time
	Finished  time.Time
	ExitCode  int32
	Reason    string
	Message   string
	Image     string
	ImageRef  string
	// Hash of the spec it was made from, see Hash.
	Hash string
	User *v1.ContainerUser `json:",omitempty"`
	// Mounts that have something to tell.
	Mounts []Mount `json:",omitempty"`
	// StopSignal that ends it, where the runtime tells.
	StopSignal v1.Signal `json:",omitempty"`
	// Lost: it is not known to the runtime any more, only to the record or the API.
	Lost bool `json:",omitempty"`
}

// Mount in a container, as the runtime made it.
type Mount struct {
	Path string
	// Image that is mounted, by digest.
	Image string `json:",omitempty"`
	// Recursive: read-only with all below it.
	Recursive bool `json:",omitempty"`
}

// Live tells whether the instance runs, or may run.
func (c *Container) Live() bool { return c.State != Exited }

// Volume is the state of a volume that was set up.
type Volume struct {
	Mounted bool
	// Objects is the value of Input.Objects when it was last written.
	Objects uint64
	// RefreshAt is when its content wants a renewal (service account tokens).
	RefreshAt time.Time
}

// Residue is what is left of a pod outside of the runtime.
type Residue struct {
	Volumes bool
	Cgroup  bool
}

// Image says that the image for an attempt of a container is there.
type Image struct {
	Attempt uint32
	// Name is the image as the spec had it.
	Name string
	Ref  string
}

// Probe is the newest result of a container's probes. A nil pointer is "not known yet".
type Probe struct {
	Started *bool
	Ready   *bool
	// Failed is the message of the event when the liveness or startup probe gave
	// up, and asks for a restart.
	Failed string
	// FailedKind is "liveness" or "startup".
	FailedKind string
	// Grace is the failed probe's own grace period.
	Grace *int64
}

// Hook is where the postStart hook of an instance stands.
type Hook struct {
	Done   bool
	Failed string
}

// Flight is an op that runs.
type Flight struct {
	Op       Op
	Since    time.Time
	Canceled bool
}

// Failure is how an op last ended, when it failed.
type Failure struct {
	Count   int
	At      time.Time
	Reason  string
	Message string
	// Objects is the value of Input.Objects when it failed: a change since then is
	// reason to try again at once.
	Objects uint64
	// Attempt of the container that it was for.
	Attempt uint32
	// LookedAt is when a backed-off image was last looked for.
	LookedAt time.Time
	// Fatal: trying again cannot help until the objects change.
	Fatal bool
}
