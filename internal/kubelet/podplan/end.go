package podplan

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// ending decides whether the pod must end, and why.
func (p *planner) ending() (Ending, bool) {
	in := p.in
	if in.Record.Ending != nil {
		return *in.Record.Ending, true
	}
	switch v := in.Record.Verdict; {
	case in.Absent, in.Pod.DeletionTimestamp != nil:
		return Ending{Since: p.now}, true
	case v != nil && !v.Admitted:
		return Rejected(*v, p.now), true
	case pods.IsTerminal(in.Reported.Phase):
		return Ending{Since: p.now, Phase: in.Reported.Phase, Reason: in.Reported.Reason, Message: in.Reported.Message}, true
	}
	if at, ok := p.deadline(); ok && !at.After(p.now) {
		return Ending{Since: p.now, Reason: ReasonDeadlineExceeded, Message: messageDeadline}, true
	}
	if in.Record.Verdict != nil {
		if phase := p.completed(); phase != "" {
			return Ending{Since: p.now, Phase: phase}, true
		}
	}
	return Ending{}, false
}

// Rejected is the ending of a pod that the node does not take.
func Rejected(v Verdict, now time.Time) Ending {
	return Ending{Since: now, Reason: v.Reason, Message: "Pod was rejected: " + v.Message}
}

// completed returns the phase of a pod none of whose containers will ever be started again: all app
// containers have ended for good, or an init container failed for good.
func (p *planner) completed() v1.PodPhase {
	pod := p.in.Pod
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := p.last(c.Name)
		if last != nil && !last.Live() && last.ExitCode != 0 && !pods.IsSidecar(c) && !p.busy(c.Name) &&
			!pods.Restarts(pod, c, last.ExitCode) && !p.initialised() {
			return v1.PodFailed
		}
	}
	phase := v1.PodSucceeded
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		last := p.last(c.Name)
		if last == nil || last.Live() || p.busy(c.Name) || !p.done(c, last) {
			return ""
		}
		if last.ExitCode != 0 {
			phase = v1.PodFailed
		}
	}
	if len(pod.Spec.Containers) == 0 {
		return ""
	}
	return phase
}

// busy reports whether a new instance of the container is being created.
func (p *planner) busy(name string) bool {
	_, ok := p.in.InFlight[ContainerKey(name)]
	return ok
}

// end takes a pod down.
//
//  1. The preStop hooks of all containers run. Each then stops within what is left of
//     the grace period; sidecars after the others, in reverse order.
//  2. When nothing runs: sandboxes stop, devices are given back, volumes and cgroup go. Only then a final phase is
//     reported: it lets others have the devices.
//  3. A deleted pod's sandboxes and containers are removed, and last its object.
func (p *planner) end(e Ending) {
	p.plan.Life = PodTerminating
	e.Removed = e.Removed || p.in.Absent && p.in.Record.Static
	if old := p.plan.Record.Ending; old == nil || *old != e {
		p.plan.Record.Ending = &e
	}
	p.stopAll(e)
	p.awaitMade()
	if anyLive(p.in) || p.building() {
		return
	}
	gone := p.in.Absent || p.in.Pod.DeletionTimestamp != nil
	left := p.endSandboxes(gone)
	if p.in.Residue.Claims && !left { // the sandbox may have devices, too
		left = true
		p.try(Op{Kind: UnprepareClaims})
	}
	if p.in.Residue.Volumes {
		left = true
		p.try(Op{Kind: ClearVolumes})
	}
	if p.in.Residue.Cgroup && !p.in.Residue.Volumes {
		left = true
		p.try(Op{Kind: RemoveCgroup})
	}
	if left {
		return
	}
	p.plan.Life = PodTerminated
	if gone {
		p.finish()
	}
}

// finish takes the last step for a pod that is to be removed entirely.
func (p *planner) finish() {
	if p.in.Forgotten {
		p.plan.Done = true
		return
	}
	if len(p.in.InFlight) > 0 && !p.keep("forget") {
		p.wait("waits for operations in flight")
		return
	}
	if until := p.vanished(); until.After(p.now) {
		p.wait("waits for the API server to remove the pod")
		p.recheck(until)
		return
	}
	p.try(Op{Kind: Forget})
}

// Vanishing reports whether the API server is about to remove the object of a deleted pod by itself: the pod gets no
// time to end, because it had ended before or is to be gone at once, and no finalizer holds it.
func Vanishing(pod *v1.Pod) bool {
	grace := pod.DeletionGracePeriodSeconds
	return pod.DeletionTimestamp != nil && grace != nil && *grace == 0 && len(pod.Finalizers) == 0
}

// vanishPatience is how long a pod's end waits for that. Deletion and removal are two writes, between which an API
// server can die: then the object is ours to remove. Times of objects have full seconds.
const vanishPatience = 2 * time.Second

// vanished returns when the object of a vanishing pod must be gone; no time if nobody else removes it, or if the
// server's clock is ahead.
func (p *planner) vanished() time.Time {
	pod := p.in.Pod
	if p.in.Absent || p.in.Record.Static || !Vanishing(pod) || pod.DeletionTimestamp.After(p.now) {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(vanishPatience)
}

// madePatience is how long the end of a pod waits for a sandbox or a container that is still being
// created.
const madePatience = 10 * time.Second

// awaitMade waits for what is still being created: a runtime carries on even when nobody waits for
// it any more, and the result would appear after everything else of the pod is gone.
func (p *planner) awaitMade() {
	for _, key := range slices.Sorted(maps.Keys(p.in.InFlight)) {
		f := p.in.InFlight[key]
		makes := f.Op.Kind == RunSandbox || f.Op.Kind == CreateContainer
		if until := f.Since.Add(madePatience); makes && until.After(p.now) && p.keep(key) {
			p.recheck(until)
		}
	}
}

// building reports whether an op that creates something has not returned yet.
func (p *planner) building() bool {
	found := false
	for _, key := range slices.Sorted(maps.Keys(p.in.InFlight)) {
		if op := p.in.InFlight[key].Op; !op.Kind.teardown() {
			p.wait("%s has not returned", op.Kind)
			found = true
		}
	}
	return found
}

// stopAll stops all live instances, sidecars last.
func (p *planner) stopAll(e Ending) {
	deadline := e.Deadline(p.in.Pod)
	soonest := p.now.Add(minStop)
	if g := deadline.Sub(e.Since); g > 0 {
		soonest = p.now.Add(min(g, minStop))
	}
	var sidecars []*Container
	others := false
	for i := range p.in.Containers {
		c := &p.in.Containers[i]
		if !c.Live() {
			continue
		}
		if c.State == Created {
			p.drop(c)
			continue
		}
		if spec := pods.FindContainer(p.in.Pod, c.Name); spec != nil && pods.IsInit(p.in.Pod, c.Name) && pods.IsSidecar(spec) {
			sidecars = append(sidecars, c)
			continue
		}
		others = true
		p.stopBy(c, deadline, soonest)
	}
	order := func(c *Container) int {
		return slices.IndexFunc(p.in.Pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
	}
	slices.SortFunc(sidecars, func(a, b *Container) int { return order(b) - order(a) })
	for i, c := range sidecars {
		// A sidecar waits for its turn, but not beyond the grace period. Its hook does not wait.
		if !others && i == 0 || !deadline.After(p.now) {
			p.stopBy(c, deadline, soonest)
			continue
		}
		p.preStop(c, endOp(c, deadline))
		p.recheck(deadline)
		p.watchReadiness(c)
	}
}

// noteAll records the final states of the containers that are removed with a sandbox: their status
// may not have reached the API server yet.
func (p *planner) noteAll(sandbox string) {
	for i := range p.in.Containers {
		if c := &p.in.Containers[i]; c.SandboxID == sandbox {
			p.noteLast(c)
		}
	}
}

// endSandboxes stops every sandbox, or removes it if the pod is to be gone, and reports whether any
// is left.
func (p *planner) endSandboxes(gone bool) bool {
	left := false
	for i := range p.in.Sandboxes {
		s := &p.in.Sandboxes[i]
		switch {
		case gone:
			left = true
			p.noteAll(s.ID)
			p.try(Op{Kind: RemoveSandbox, ID: s.ID})
		case s.Ready:
			left = true
			p.try(Op{Kind: StopSandbox, ID: s.ID})
		}
	}
	if !gone {
		p.collectDead()
		return p.clearLayers() || left
	}
	if len(p.in.Sandboxes) == 0 {
		for i := range p.in.Containers {
			left = true
			p.remove(&p.in.Containers[i])
		}
	}
	return left
}

// clearLayers removes the containers of a pod that ended if the node needs the space that they
// wrote, and reports whether any is left.
func (p *planner) clearLayers() bool {
	if e := p.plan.Record.Ending; e == nil || !e.Reclaim {
		return false
	}
	for i := range p.in.Containers {
		p.remove(&p.in.Containers[i])
	}
	return len(p.in.Containers) > 0
}
