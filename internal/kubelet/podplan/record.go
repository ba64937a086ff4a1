package podplan

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// Record holds what cannot be observed again. The pod's worker is its only writer, and writes it
// before the effect that it describes.
type Record struct {
	Namespace string
	Name      string
	Static    bool `json:",omitempty"`
	// Verdict is nil until the pod was admitted or refused, once.
	Verdict *Verdict `json:",omitempty"`
	// Ending is set when the pod begins to end, and is never cleared.
	Ending *Ending `json:",omitempty"`
	// StartTime is when the node first saw the pod.
	StartTime time.Time
	// Grace is the pod's own grace period, for when only the record is left.
	Grace      int64
	Containers map[string]History `json:",omitempty"`
	// RestartAll is set while all containers are being removed to start again.
	RestartAll *RestartAll `json:",omitempty"`
	// Resize is nil until the pod is to have other resources than those it was admitted with.
	Resize *Resize `json:",omitempty"`
}

// Verdict is the outcome of admission.
type Verdict struct {
	Admitted bool
	Reason   string `json:",omitempty"`
	Message  string `json:",omitempty"`
	// Allocated has the resources that each container was admitted with, or was given by a resize
	// since; Pod has those of the pod as a whole.
	Allocated map[string]v1.ResourceRequirements `json:",omitempty"`
	Pod       *v1.ResourceRequirements           `json:",omitempty"`
	// Devices has what device plugins gave to the containers.
	Devices Devices `json:",omitempty"`
	// CPUs has the CPUs that containers have for themselves.
	CPUs CPUs `json:",omitempty"`
	// Memory has the memory that containers have of certain NUMA nodes.
	Memory Memory `json:",omitempty"`
}

// Memory is what a pod's containers have of certain NUMA nodes, by container.
type Memory map[string][]MemoryBlock

// MemoryBlock is memory, or huge pages of one size, that a container has of some nodes together.
type MemoryBlock struct {
	Resource string
	// Nodes are NUMA nodes, as the kernel writes sets of them.
	Nodes string
	// Size in bytes; Reused is the part of it that init containers had which ended before.
	Size   uint64
	Reused uint64 `json:",omitempty"`
}

// CPUs are those that a pod's containers have for themselves, by container, as the kernel writes sets of CPUs ("0-3,8").
type CPUs map[string]string

// Devices are what a pod's containers have of device plugins, by container.
type Devices map[string][]Grant

// Grant is what a container has of one resource.
type Grant struct {
	Resource string
	IDs      []string
	// Needs is what the plugin said that the container needs for them: an encoded ContainerAllocateResponse
	// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
	Needs []byte `json:",omitempty"`
}

// Ending is why a pod ends, and since when.
type Ending struct {
	Since time.Time
	// Reason and Message go into the pod's status, with phase Failed. They are empty for a pod that
	// was deleted or has completed.
	Reason  string `json:",omitempty"`
	Message string `json:",omitempty"`
	// Phase of a pod that ended by itself; empty for one that was made to end.
	Phase v1.PodPhase `json:",omitempty"`
	// Removed: the manifest of a static pod was removed. The pod ends even if the manifest is put
	// back, and starts again once it is gone.
	Removed bool `json:",omitempty"`
	// Grace overrides the pod's grace period.
	Grace *int64 `json:",omitempty"`
	// Disruption, if set, is the reason of the condition DisruptionTarget; DisruptionMessage is its
	// message where that differs from Message.
	Disruption        string `json:",omitempty"`
	DisruptionMessage string `json:",omitempty"`
	// Reclaim: what its containers wrote is removed as soon as they have ended.
	Reclaim bool `json:",omitempty"`
}

// Hasten returns the ending of a pod that is ending already and that the node now wants to end too:
// the earlier of the two deadlines, and the node's reason if the pod was ending only because
// somebody wanted it to.
func (e *Ending) Hasten(pod *v1.Pod, by Ending) Ending {
	out := *e
	if e.Reason == "" && e.Phase == "" && !e.Removed {
		out.Reason, out.Message, out.Disruption, out.DisruptionMessage = by.Reason, by.Message, by.Disruption, by.DisruptionMessage
	}
	out.Reclaim = e.Reclaim || by.Reclaim
	if sooner := by.Deadline(pod); sooner.Before(e.Deadline(pod)) {
		grace := max(int64(sooner.Sub(e.Since)/time.Second), 0)
		out.Grace = &grace
	}
	return out
}

// Deadline returns when whatever still runs of the pod is killed.
func (e *Ending) Deadline(pod *v1.Pod) time.Time {
	g := grace(pod)
	if e.Grace != nil {
		g = *e.Grace
	}
	return e.Since.Add(time.Duration(g) * time.Second)
}

// Removed reports whether the manifest of a static pod was removed, and the pod is not gone yet.
// Nothing else ends a static pod without a reason or a phase.
func (r *Record) Removed() bool {
	return r.Static && r.Ending != nil && (r.Ending.Removed || r.Ending.Reason == "" && r.Ending.Phase == "")
}

// History is what the node remembers about a container whose instances may be gone.
type History struct {
	// Attempt of the newest instance that was planned.
	Attempt uint32
	// Wait is the crash back-off before the start that follows Attempt.
	Wait time.Duration
	// HookPending: the postStart hook of Attempt has not finished yet.
	HookPending bool `json:",omitempty"`
	// Replace is one more than the attempt that is to be replaced once it has ended, whatever the
	// restart policy says; 0 for none.
	Replace uint32 `json:",omitempty"`
	// Killed is one more than the attempt that was ended because a probe had failed, and is restarted whatever its exit
	// code; 0 for none.
	Killed uint32 `json:",omitempty"`
	// Applied is what the live instance still has when other resources are allocated.
	Applied *v1.ResourceRequirements `json:",omitempty"`
	// AppliedPod has the pod-level limits that apply to that instance where it has none of its own.
	AppliedPod v1.ResourceList `json:",omitempty"`
	// Dropped is the attempt of the newest instance that was removed before it ran: restart counts
	// have already included it.
	Dropped uint32 `json:",omitempty"`
	// Before is how often the container was restarted, at the least, when this life of a static pod began.
	Before uint32 `json:",omitempty"`
	// Last is the final state of the newest instance that was removed.
	Last *Container `json:",omitempty"`
}

// Again returns the record with which the next life of a static pod begins, of which the manifest was taken away and put
// back: its containers count as restarted.
func (r Record) Again(pod *v1.Pod, last *v1.PodStatus) Record {
	out := Record{}
	for c := range pods.Containers(&pod.Spec) {
		name, before := c.Name, uint32(0)
		if h, ok := r.Containers[name]; ok {
			before = max(h.Attempt, h.Before) + 1
		}
		if st := findStatus(last, name); st != nil && st.RestartCount > 0 {
			before = max(before, uint32(st.RestartCount))
		}
		if before > 0 {
			out.setHistory(name, History{Before: before})
		}
	}
	return out
}

// clone copies the parts that a plan may change.
func (r Record) clone() Record {
	r.Containers = maps.Clone(r.Containers)
	return r
}

// history returns what is known about a container; the zero value if nothing is.
func (r Record) history(name string) History { return r.Containers[name] }

func (r *Record) setHistory(name string, h History) {
	if r.Containers == nil {
		r.Containers = map[string]History{}
	}
	r.Containers[name] = h
}
