package podplan

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Input is everything that a decision about one pod depends on.
type Input struct {
	// Pod is what the source wants. For an orphan it holds only what the runtime's labels say:
	// name, namespace, UID and grace period.
	Pod *v1.Pod
	// Absent: all sources have synced and none of them has the pod.
	Absent bool
	// Record is the durable part; the plan contains its successor.
	Record Record

	Sandboxes  []Sandbox
	Containers []Container
	// Volumes has an entry for each volume that was set up in this worker's lifetime.
	Volumes map[string]Volume
	// Residue is what a pod that is ending has left on the node.
	Residue Residue
	// Forgotten: the last traces are gone, and so is the API object of a deleted pod.
	Forgotten bool
	// CgroupReady: the pod's cgroup exists with its limits.
	CgroupReady bool
	// Images has an entry for each container whose image is present for an attempt.
	Images map[string]Image
	// Probes by container ID.
	Probes map[string]Probe
	// Hooks has the outcome of postStart hooks by container ID.
	Hooks map[string]Hook
	// PreStops has the finished preStop hooks by container ID.
	PreStops map[string]Op
	// Resized is the newest Resize.Seq that was applied to everything that runs.
	Resized uint32

	// DeviceHealth has the health of the pod's devices, by resource and ID; nil if it has none.
	DeviceHealth map[string]map[string]v1.ResourceHealthStatus
	// ClaimHealth has the health of the devices that containers have by resource claims, by container.
	ClaimHealth map[string][]v1.ResourceStatus
	// VolumeHealth has what is wrong with the pod's volumes, as the status is to say it.
	VolumeHealth []v1.PodVolumeHealth

	InFlight map[Key]Flight
	Failures map[Key]Failure
	// Objects counts the changes of the objects that the pod refers to.
	Objects uint64
	// Reported is the newest status that was put or, at first, the one from the source.
	Reported v1.PodStatus
	// Earlier, if not nil, is what the mirror of a static pod said when this kubelet began: how ready the containers were that
	// still run. A static pod comes without a status.
	Earlier *v1.PodStatus
	Node    Node
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
	// WaitsFrom is from when its back-off counts, if that is not Finished: the clock was set back.
	WaitsFrom time.Time `json:",omitzero"`
	ExitCode  int32
	Reason    string
	Message   string
	Image     string
	ImageRef  string
	// Hash of the spec that it was created from, see Hash.
	Hash string
	User *v1.ContainerUser `json:",omitempty"`
	// Mounts about which there is something to report.
	Mounts []Mount `json:",omitempty"`
	// StopSignal that stops it, if the runtime reports one.
	StopSignal v1.Signal `json:",omitempty"`
	// Lost: the runtime no longer knows it, only the record or the API does.
	Lost bool `json:",omitempty"`
}

// Mount in a container, as the runtime made it.
type Mount struct {
	Path string
	// Image that is mounted, by digest.
	Image string `json:",omitempty"`
	// Recursive: read-only including everything below it.
	Recursive bool `json:",omitempty"`
}

// Live reports whether the instance runs, or may run.
func (c *Container) Live() bool { return c.State != Exited }

// Volume is the state of a volume that was set up.
type Volume struct {
	Mounted bool
	// Objects is the value of Input.Objects when it was last written.
	Objects uint64
	// RefreshAt is when its content has to be renewed (service account tokens).
	RefreshAt time.Time
}

// Residue is what is left of a pod outside the runtime.
type Residue struct {
	Volumes bool
	Cgroup  bool
	// Claims: resource claims may be prepared for it.
	Claims bool
}

// Image is the image that is present for an attempt of a container.
type Image struct {
	Attempt uint32
	// Name is the image as the spec wrote it.
	Name string
	Ref  string
}

// Probe is the newest result of a container's probes. A nil pointer is "not known yet".
type Probe struct {
	Started *bool
	Ready   *bool
	// Failed is the message of the event for a liveness or startup probe that has failed for good,
	// so that the container must restart.
	Failed string
	// FailedKind is "liveness" or "startup".
	FailedKind string
	// Grace is the failed probe's own grace period.
	Grace *int64
}

// Hook is the progress of an instance's postStart hook.
type Hook struct {
	Done   bool
	Failed string
}

// Flight is an op in flight.
type Flight struct {
	Op       Op
	Since    time.Time
	Canceled bool
}

// Failure is how an op last failed.
type Failure struct {
	Count   int
	At      time.Time
	Reason  string
	Message string
	// Objects is the value of Input.Objects when it failed: a change since then is a reason to
	// retry at once.
	Objects uint64
	// Attempt of the container that the op was for.
	Attempt uint32
	// LookedAt is when the node was last checked for a backed-off image.
	LookedAt time.Time
	// Fatal: a retry cannot help until the objects change.
	Fatal bool
}
