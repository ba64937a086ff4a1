package podplan

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// view arranges an Input's facts for the decisions that need them.
type view struct {
	in      *Input
	byName  map[string][]*Container // newest first
	sandbox *Sandbox                // the one in use, nil if a new one is needed
	newest  *Sandbox                // the newest that was made
}

func newView(in *Input) *view {
	v := &view{in: in, byName: map[string][]*Container{}}
	for i := range in.Containers {
		c := &in.Containers[i]
		v.byName[c.Name] = append(v.byName[c.Name], c)
	}
	for _, list := range v.byName {
		slices.SortFunc(list, func(a, b *Container) int {
			return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created), cmp.Compare(b.ID, a.ID))
		})
	}
	for i := range in.Sandboxes {
		s := &in.Sandboxes[i]
		if v.beingMade(s) {
			continue
		}
		if v.newest == nil || s.Attempt > v.newest.Attempt || s.Attempt == v.newest.Attempt && s.Created.After(v.newest.Created) {
			v.newest = s
		}
	}
	if v.newest != nil && v.newest.Ready && (len(v.newest.IPs) > 0 || in.Pod.Spec.HostNetwork) {
		v.sandbox = v.newest
	}
	return v
}

// beingMade reports whether a sandbox is seen before the call that makes it has returned: Docker
// shows it as ready before it has a network. Until then it is nobody's.
func (v *view) beingMade(s *Sandbox) bool {
	f, ok := v.in.InFlight[SandboxKey]
	return ok && !f.Canceled && f.Op.Attempt == s.Attempt
}

// last returns the newest instance of a container: one that the runtime has, one that was removed
// and is in the record, or one that ran earlier according to the reported status.
func (v *view) last(name string) *Container {
	list := v.byName[name]
	if h := v.in.Record.history(name); h.Last != nil && (len(list) == 0 || h.Last.Attempt > list[0].Attempt) {
		lost := *h.Last
		lost.Lost = true
		return &lost
	}
	if len(list) > 0 {
		return list[0]
	}
	return v.lost(name)
}

// lost rebuilds an instance from the reported status. One that was running and that the runtime no
// longer knows has ended in an unknown way.
func (v *view) lost(name string) *Container {
	st := findStatus(&v.in.Reported, name)
	if st == nil || st.ContainerID == "" {
		return nil
	}
	c := Container{
		ID: trimScheme(st.ContainerID), Name: name, State: Exited, Attempt: uint32(max(st.RestartCount, 0)),
		Image: st.Image, ImageRef: st.ImageID, Lost: true,
	}
	switch {
	case st.State.Terminated != nil:
		setTerminated(&c, st.State.Terminated)
	case st.State.Running != nil:
		c.ExitCode, c.Reason, c.Message = 137, ReasonContainerStatusUnknown, messageLost
		c.Started = st.State.Running.StartedAt.UTC()
	case st.LastTerminationState.Terminated != nil:
		setTerminated(&c, st.LastTerminationState.Terminated)
		if id := st.LastTerminationState.Terminated.ContainerID; id != "" {
			c.ID = trimScheme(id) // the status is that of the next instance, which was not started yet
		}
	default:
		return nil
	}
	return &c
}

func setTerminated(c *Container, t *v1.ContainerStateTerminated) {
	c.ExitCode, c.Reason, c.Message = t.ExitCode, t.Reason, t.Message
	c.Started, c.Finished = t.StartedAt.UTC(), t.FinishedAt.UTC()
}

// before returns the newest dead instance older than c.
func (v *view) before(c *Container) *Container {
	for _, o := range v.byName[c.Name] {
		if o != c && o.State == Exited {
			return o
		}
	}
	return nil
}

// live returns the live instances of a container, newest first.
func (v *view) live(name string) []*Container {
	var out []*Container
	for _, c := range v.byName[name] {
		if c.Live() {
			out = append(out, c)
		}
	}
	return out
}

// anyLive reports whether anything of the pod runs or may run.
func anyLive(in *Input) bool {
	return slices.ContainsFunc(in.Containers, func(c Container) bool { return c.Live() })
}

// here reports whether the instance belongs to the sandbox in use.
func (v *view) here(c *Container) bool {
	return c != nil && !c.Lost && v.sandbox != nil && c.SandboxID == v.sandbox.ID
}

// inNewest reports whether the instance belongs to the newest sandbox, dead or not: that is what
// decides how far initialisation got.
func (v *view) inNewest(c *Container) bool {
	return c != nil && !c.Lost && v.newest != nil && c.SandboxID == v.newest.ID
}

// passed reports whether an init container of the newest sandbox is known to be done although it is gone: somebody removed
// it, and a later one that was started proves it.
func (v *view) passed(i int) bool {
	all := v.in.Pod.Spec.InitContainers
	c := &all[i]
	if last := v.last(c.Name); pods.IsSidecar(c) || v.inNewest(last) || v.replaced(c.Name, last) {
		return false
	}
	return slices.ContainsFunc(all[i+1:], func(later v1.Container) bool {
		last := v.last(later.Name)
		return v.inNewest(last) && !v.replaced(later.Name, last)
	})
}

// initialised reports whether the init containers of the newest sandbox are done. An app container
// in it proves that, even if they are gone, unless they are to run again.
func (v *view) initialised() bool {
	pod := v.in.Pod
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if last := v.last(c.Name); !pods.IsSidecar(c) && v.replaced(c.Name, last) && !last.Live() {
			return false
		}
	}
	for i := range pod.Spec.Containers {
		if slices.ContainsFunc(v.byName[pod.Spec.Containers[i].Name], v.inNewest) {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := v.last(c.Name)
		if v.passed(i) {
			continue
		}
		if !v.inNewest(last) {
			return false
		}
		if pods.IsSidecar(c) {
			if !v.started(c, last) {
				return false
			}
		} else if last.Live() || last.ExitCode != 0 {
			return false
		}
	}
	return true
}

// started reports whether an instance runs and is past its postStart hook and startup probe.
func (v *view) started(spec *v1.Container, c *Container) bool {
	if c == nil || c.State != Running || !v.hookDone(spec, c) {
		return false
	}
	if spec.StartupProbe == nil {
		return true
	}
	if p := v.in.Probes[c.ID]; p.Started != nil {
		return *p.Started
	}
	return v.told(c, func(st *v1.ContainerStatus) bool { return st.Started != nil && *st.Started })
}

// told reports whether a status that was reported of this very instance says something.
func (v *view) told(c *Container, says func(*v1.ContainerStatus) bool) bool {
	for _, status := range []*v1.PodStatus{&v.in.Reported, v.in.Earlier} {
		if status == nil {
			continue
		}
		if st := findStatus(status, c.Name); st != nil && trimScheme(st.ContainerID) == c.ID && says(st) {
			return true
		}
	}
	return false
}

// ready reports whether an instance may get traffic. Until a probe has answered since the kubelet
// started, what was reported before stands.
func (v *view) ready(spec *v1.Container, c *Container) bool {
	if !v.started(spec, c) {
		return false
	}
	if spec.ReadinessProbe == nil {
		return true
	}
	if p := v.in.Probes[c.ID]; p.Ready != nil {
		return *p.Ready
	}
	return v.told(c, func(st *v1.ContainerStatus) bool { return st.Ready })
}

func (v *view) hookDone(spec *v1.Container, c *Container) bool {
	if spec.Lifecycle == nil || spec.Lifecycle.PostStart == nil {
		return true
	}
	if h, ok := v.in.Hooks[c.ID]; ok {
		return h.Done
	}
	h := v.in.Record.history(c.Name)
	return !h.HookPending || h.Attempt != c.Attempt
}

// findStatus returns the reported status of a container of any kind, nil if there is none.
func findStatus(st *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// WaitingReason returns why a container waits according to a status, or an empty string.
func WaitingReason(st *v1.PodStatus, container string) string {
	if c := findStatus(st, container); c != nil && c.State.Waiting != nil {
		return c.State.Waiting.Reason
	}
	return ""
}

// trimScheme removes a prefix such as "containerd://" from a container ID.
func trimScheme(id string) string {
	for i := 0; i+2 < len(id); i++ {
		if id[i] == ':' && id[i+1] == '/' && id[i+2] == '/' {
			return id[i+3:]
		}
	}
	return id
}

// mounted reports whether every volume is mounted.
func (v *view) mounted() bool {
	for i := range v.in.Pod.Spec.Volumes {
		volume := &v.in.Pod.Spec.Volumes[i]
		if volume.Image == nil && !v.in.Volumes[volume.Name].Mounted {
			return false
		}
	}
	return true
}
