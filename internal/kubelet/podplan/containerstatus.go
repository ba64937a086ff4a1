package podplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/pods"
)

// container returns the status of one container; waiting is the reason to report when nothing
// better is known.
func (r *reporter) container(c *v1.Container, waiting string) v1.ContainerStatus {
	last := r.last(c.Name)
	old := findStatus(&r.in.Reported, c.Name)
	st := v1.ContainerStatus{
		Name: c.Name, Image: c.Image, VolumeMounts: r.volumeMounts(c, last), RestartCount: int32(r.in.Record.history(c.Name).Before),
		AllocatedResourcesStatus: r.deviceStatus(c.Name), // it has them before it starts
	}
	if old != nil {
		st.RestartCount, st.LastTerminationState = max(st.RestartCount, old.RestartCount), old.LastTerminationState
	}
	if !pods.IsEphemeral(r.in.Pod, c.Name) {
		st.Started = new(r.started(c, last))
	}
	switch {
	case last == nil && old != nil && old.State.Running == nil && pods.IsTerminal(r.in.Reported.Phase):
		st.State = old.State // what was final, or why it never ran: a restart of the kubelet forgets both
		return st
	case last == nil:
		st.State.Waiting = r.why(c, waiting)
		return st
	}
	st.RestartCount = max(st.RestartCount, int32(last.Attempt), int32(r.in.Record.history(c.Name).Dropped))
	st.ContainerID = r.id(last.ID)
	st.Image, st.ImageID = last.Image, last.ImageRef
	if before := r.predecessor(last); before != nil {
		st.LastTerminationState = r.terminated(before)
	}
	r.setState(&st, c, last, waiting)
	if now, before := st.State.Terminated, st.LastTerminationState.Terminated; now != nil && before != nil && now.ContainerID == before.ContainerID {
		st.LastTerminationState = v1.ContainerState{} // it was set while the container waited for a restart
	}
	r.setReady(&st, c, last)
	r.setResources(&st, c, last)
	return st
}

// predecessor returns the instance that came before another: one that the runtime has, one that is
// recorded, or one that was reported and is not known any more.
func (r *reporter) predecessor(last *Container) *Container {
	if before := r.before(last); before != nil {
		return before
	}
	before := r.in.Record.history(last.Name).Last
	if before != nil && before.ID == last.ID {
		before = nil
	}
	lost := r.lost(last.Name)
	if lost != nil && lost.ID != last.ID && lost.Attempt < last.Attempt && (before == nil || before.Attempt < lost.Attempt) {
		return lost
	}
	return before
}

func (r *reporter) setState(st *v1.ContainerStatus, c *v1.Container, last *Container, waiting string) {
	switch {
	case last.State == Running && r.hookDone(c, last):
		st.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(last.Started).Rfc3339Copy()}
	case last.State == Running && r.rest:
		st.State = r.terminated(last)
	case last.Live():
		st.State.Waiting = r.why(c, waiting)
	case r.ending != nil || r.in.Pod.DeletionTimestamp != nil || r.in.Absent || r.doneFor(c, last):
		st.State = r.terminated(last)
		if t := st.State.Terminated; last.Lost && t.Reason == ReasonContainerStatusUnknown {
			t.Message = messageUnknown
		}
	default:
		r.setRestarting(st, c, last, waiting)
	}
}

// setRestarting reports a container that has ended and will be started again: why it waits, or how
// it ended as long as nothing is known to hold it back.
func (r *reporter) setRestarting(st *v1.ContainerStatus, c *v1.Container, last *Container, waiting string) {
	why := r.why(c, "")
	switch {
	case r.in.Record.RestartAll != nil && last.Lost:
		why = &v1.ContainerStateWaiting{Reason: ReasonRestartingAll, Message: messageRestartingAll}
	case why.Reason == "" && r.follows(c.Name, last) && (last.Lost || !pods.MayRunAgain(r.in.Pod, c, last.ExitCode)):
		// The API server does not take back a container that was reported to have ended for good.
		why.Reason = waiting
	}
	if due := r.crashDue(c.Name, last); due.After(r.now) {
		why = &v1.ContainerStateWaiting{Reason: ReasonCrashLoopBackOff, Message: r.crashMessage(c.Name, last)}
	}
	if why.Reason == "" {
		st.State = r.terminated(last)
		return
	}
	st.LastTerminationState = r.terminated(last)
	st.State.Waiting = why
}

// crashMessage returns upstream's message for a container that is backed off.
func (r *reporter) crashMessage(name string, last *Container) string {
	wait := crashWait(r.in.Record.history(name), last, r.in.Node.crashLimit())
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", wait, name, pods.Format(r.in.Pod))
}

// doneFor is planner.done without a planner.
func (r *reporter) doneFor(c *v1.Container, last *Container) bool {
	p := planner{view: r.view}
	return p.done(c, last)
}

// why returns what a container waits for: the failure that holds it back, or fallback.
func (r *reporter) why(c *v1.Container, fallback string) *v1.ContainerStateWaiting {
	f, ok := r.in.Failures[ContainerKey(c.Name)]
	if last := r.last(c.Name); ok && last != nil && last.Attempt == f.Attempt && !last.Started.IsZero() {
		ok = false // only the answer was lost: it did start
	}
	if ok && f.Reason != "" {
		return &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	}
	if f, ok := r.in.Failures[ImageKey(c.Name, c.Image)]; ok && f.Reason != "" {
		return r.whyImage(c.Image, f)
	}
	for _, v := range ImageVolumes(r.in.Pod, c) {
		if f, ok := r.in.Failures[ImageKey(VolumeImage(v.Name), v.Image.Reference)]; ok && f.Reason != "" {
			return r.whyImage(v.Image.Reference, f)
		}
	}
	return &v1.ContainerStateWaiting{Reason: fallback}
}

// whyImage reports how the pull of an image failed, or that it is backed off.
func (r *reporter) whyImage(image string, f Failure) *v1.ContainerStateWaiting {
	pulled := f.Reason == ReasonErrImagePull || f.Reason == ReasonRegistryUnavailable || f.Reason == ReasonSignatureValidationFailed
	if pulled && r.backedOff(f) {
		return &v1.ContainerStateWaiting{Reason: ReasonImagePullBackOff, Message: BackoffMessage(image, f)}
	}
	return &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
}

// backedOff reports whether a failed pull is reported as backed off by now.
func (r *reporter) backedOff(f Failure) bool {
	return !r.now.Before(f.At.Add(errImagePullShown))
}

// BackoffMessage is the message of ImagePullBackOff.
func BackoffMessage(image string, f Failure) string {
	return fmt.Sprintf("Back-off pulling image %q: %s: %s", image, f.Reason, f.Message)
}

func (r *reporter) setReady(st *v1.ContainerStatus, c *v1.Container, last *Container) {
	if pods.IsInit(r.in.Pod, c.Name) && !pods.IsSidecar(c) {
		st.Ready = st.State.Terminated != nil && last.ExitCode == 0
		return
	}
	if !pods.IsEphemeral(r.in.Pod, c.Name) {
		st.Ready = st.State.Running != nil && r.ready(c, last)
	}
}

func (r *reporter) setResources(st *v1.ContainerStatus, c *v1.Container, last *Container) {
	st.User = last.User
	if last.StopSignal != "" {
		st.StopSignal = &last.StopSignal
	}
	if pods.IsEphemeral(r.in.Pod, c.Name) {
		return
	}
	allocated := c.Resources
	if v := r.in.Record.Verdict; v != nil {
		if a, ok := v.Allocated[c.Name]; ok {
			allocated = a
		}
	}
	st.AllocatedResources = allocated.Requests.DeepCopy()
	st.Resources = &v1.ResourceRequirements{Limits: allocated.Limits.DeepCopy(), Requests: allocated.Requests.DeepCopy()}
	if h := r.in.Record.history(c.Name); last.State == Running && h.Applied != nil {
		st.Resources = &v1.ResourceRequirements{Limits: h.Applied.Limits.DeepCopy(), Requests: h.Applied.Requests.DeepCopy()}
	}
}

// deviceStatus returns the health of the devices that a container has (KEP-4680).
func (r *reporter) deviceStatus(container string) []v1.ResourceStatus {
	v := r.in.Record.Verdict
	if v == nil {
		return nil
	}
	var out []v1.ResourceStatus
	for _, g := range v.Devices[container] {
		st := v1.ResourceStatus{Name: v1.ResourceName(g.Resource)}
		for _, id := range g.IDs {
			health := cmp.Or(r.in.DeviceHealth[g.Resource][id], v1.ResourceHealthStatusUnknown)
			st.Resources = append(st.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: health})
		}
		out = append(out, st)
	}
	return append(out, r.in.ClaimHealth[container]...)
}

func (r *reporter) terminated(c *Container) v1.ContainerState {
	reason := c.Reason
	if reason == "" {
		reason = ReasonError
		if c.ExitCode == 0 {
			reason = ReasonCompleted
		}
	}
	message := c.Message
	if message == "" {
		message = r.reportedMessage(c)
	}
	if most := maxMessages / max(r.containers(), 1); len(message) > most {
		message = strings.ToValidUTF8(message[:most], "")
	}
	started := c.Started
	if started.IsZero() { // it never ran: report no time at all rather than 1970
		started = c.Finished
	}
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: reason, Message: message,
		StartedAt: stamp(started), FinishedAt: stamp(c.Finished),
		ContainerID: r.id(c.ID),
	}}
}

// maxMessages is the total size of the termination messages of a pod's containers, in bytes. Each
// container gets an equal share.
const maxMessages = 12 << 10

func (r *reporter) containers() int {
	s := &r.in.Pod.Spec
	return len(s.InitContainers) + len(s.Containers) + len(s.EphemeralContainers)
}

// reportedMessage returns the termination message that was reported for an instance: its file may
// be gone by now.
func (r *reporter) reportedMessage(c *Container) string {
	st := findStatus(&r.in.Reported, c.Name)
	if st == nil {
		return ""
	}
	for _, t := range []*v1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
		if t != nil && trimScheme(t.ContainerID) == c.ID {
			return t.Message
		}
	}
	return ""
}

// stamp truncates a time to seconds, as the API does.
func stamp(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t).Rfc3339Copy()
}

func (r *reporter) id(id string) string {
	if id == "" {
		return ""
	}
	return r.in.Node.RuntimeName + "://" + id
}

// volumeMounts reports how each volume is mounted. What only the runtime knows comes from the
// instance or, while there is none, from what was asked for.
func (r *reporter) volumeMounts(c *v1.Container, last *Container) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	images := ImageVolumes(r.in.Pod, c)
	for _, m := range c.VolumeMounts {
		st := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		made := mountAt(last, m.MountPath)
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if made.Recursive || last == nil && m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			st.RecursiveReadOnly = &mode
		}
		if made.Image != "" && slices.ContainsFunc(images, func(v *v1.Volume) bool { return v.Name == m.Name }) {
			st.VolumeStatus = &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: made.Image}}
		}
		out = append(out, st)
	}
	return out
}

func mountAt(c *Container, path string) Mount {
	if c != nil {
		for _, m := range c.Mounts {
			if m.Path == path || "/"+path == m.Path {
				return m
			}
		}
	}
	return Mount{}
}
