package podplan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// advance plans the next step that gets a container running, or keeps it running.
//
//	none ──pull──> image ──create──> Created ──start──> Running ──hook──> started
//	  ^                                 │ start failed      │ unhealthy, changed
//	  └──── back-off ── Exited <────────┴───── stop ────────┘
func (p *planner) advance(c *v1.Container, sandboxReady bool) {
	if p.keep(ContainerKey(c.Name)) {
		return
	}
	live := p.live(c.Name)
	for _, o := range live {
		if !p.here(o) {
			return // bringSandbox stops it
		}
	}
	if len(live) > 1 {
		for _, o := range live[1:] {
			p.halt(o, "Duplicate", "Stopping container "+c.Name)
		}
		return
	}
	if len(live) == 1 {
		p.tend(c, live[0])
		return
	}
	p.bringUp(c, sandboxReady)
}

// tend looks after a live instance.
func (p *planner) tend(c *v1.Container, o *Container) {
	if p.stopping(o) {
		p.watchReadiness(o)
		return
	}
	if hook, begun, _ := p.hookOf(o); begun {
		p.stop(o, hook.Reason, hook.Message)
		return
	}
	switch o.State {
	case Created:
		p.startCreated(c, o)
	case Unknown:
		p.stop(o, "Unknown", fmt.Sprintf("Container is in %q state, try killing it before restart", "unknown"))
	case Running:
		p.tendRunning(c, o)
	}
}

func (p *planner) startCreated(c *v1.Container, o *Container) {
	f, failed := p.in.Failures[ContainerKey(c.Name)]
	if !failed || f.Attempt != o.Attempt || f.Reason != ReasonRunContainerError {
		p.want(Op{Kind: StartContainer, Name: c.Name, ID: o.ID, Attempt: o.Attempt})
		return
	}
	// An instance that failed to start is replaced by a new one after the back-off.
	if due := f.At.Add(retryAfter(StartContainer, f.Count)); due.After(p.now) {
		p.recheck(due)
		p.wait("container %s did not start: %s", c.Name, f.Message)
		return
	}
	p.remove(o)
}

func (p *planner) tendRunning(c *v1.Container, o *Container) {
	message, reason := "", ""
	restart := pods.RestartsWhenKilled(p.in.Pod, c)
	probe, hook := p.in.Probes[o.ID], p.in.Hooks[o.ID]
	switch {
	case pods.IsEphemeral(p.in.Pod, c.Name):
		return
	case o.Hash != "" && o.Hash != pods.Hash(c):
		message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
		p.replace(o)
	case p.restartsToResize(c.Name):
		p.replace(o)
		p.stop(o, "Resize", fmt.Sprintf("Container %s resize requires restart", c.Name))
		return
	case hook.Failed != "":
		p.stop(o, ReasonPostStartHook, "FailedPostStartHook")
		return
	case !p.hookDone(c, o):
		p.want(Op{Kind: RunHook, Name: c.Name, ID: o.ID})
		return
	case probe.Failed != "":
		message, reason = fmt.Sprintf("Container %s failed %s probe", c.Name, probe.FailedKind), probe.FailedKind
		if restart {
			p.restart(o)
		}
	default:
		p.plan.Probes = append(p.plan.Probes, ProbeTarget{ID: o.ID, Name: c.Name, Since: o.Started, Started: p.started(c, o)})
		if !p.started(c, o) {
			p.wait("container %s has not passed its startup probe", c.Name)
		} else if !p.ready(c, o) {
			p.wait("container %s is not ready", c.Name)
		}
		return
	}
	if restart {
		message += ", will be restarted"
	}
	p.stop(o, reason, message)
}

// restart records that a new instance follows this one whatever its exit code, after the usual back-off.
func (p *planner) restart(o *Container) {
	h := p.plan.Record.history(o.Name)
	h.Killed, h.Attempt = o.Attempt+1, max(h.Attempt, o.Attempt)
	p.plan.Record.setHistory(o.Name, h)
}

// replace records that a new instance follows this one, whatever the restart policy says.
func (p *planner) replace(o *Container) {
	h := p.plan.Record.history(o.Name)
	h.Replace, h.Attempt = o.Attempt+1, max(h.Attempt, o.Attempt)
	p.plan.Record.setHistory(o.Name, h)
}

// Replacing reports whether a container is being replaced because its spec has changed, and nothing has gone wrong with that:
// the old instance is still there, or the new one has not been started.
func Replacing(in *Input) bool {
	if in.Record.Ending != nil || len(in.Failures) > 0 {
		return false
	}
	var v *view
	for name, h := range in.Record.Containers {
		if h.Replace == 0 {
			continue
		}
		if v == nil {
			v = newView(in)
		}
		last := v.last(name)
		if last != nil && (last.Attempt < h.Replace || last.Attempt == h.Replace && last.State == Created) {
			return true
		}
	}
	return false
}

// replaced reports whether a new instance follows a dead one whatever the restart policy says.
func (v *view) replaced(name string, dead *Container) bool {
	return dead != nil && v.in.Record.history(name).Replace == dead.Attempt+1
}

// follows reports whether a new instance follows a dead one whatever its exit code.
func (v *view) follows(name string, dead *Container) bool {
	return v.replaced(name, dead) || dead != nil && v.in.Record.history(name).Killed == dead.Attempt+1
}

// bringUp plans a new instance: restart policy, back-off, image, create.
func (p *planner) bringUp(c *v1.Container, sandboxReady bool) {
	dead := p.last(c.Name)
	attempt := uint32(0)
	if dead != nil {
		if p.done(c, dead) {
			return
		}
		attempt = dead.Attempt + 1
		if due := p.crashDue(c.Name, dead); due.After(p.now) {
			p.recheck(due)
			p.wait("container %s: back-off restarting failed container until %s", c.Name, due.UTC().Format(time.RFC3339))
			return
		}
	}
	attempt = max(attempt, p.floor(c.Name))
	if p.removing(c.Name, attempt) {
		p.wait("container %s waits until its last instance is removed", c.Name)
		return
	}
	if !p.imagesReady(c, attempt) {
		return
	}
	if !sandboxReady || !p.mounted() || p.in.Node.CgroupsManaged && !p.in.CgroupReady {
		p.wait("container %s waits for its sandbox, volumes and cgroup", c.Name)
		return
	}
	if p.hookBy != "" {
		p.wait("container %s waits for the postStart hook of container %s", c.Name, p.hookBy)
		return
	}
	if p.growsFirst(c.Name) {
		p.wait("container %s waits until its pod is resized", c.Name)
		return
	}
	op := Op{Kind: CreateContainer, Name: c.Name, SandboxID: p.sandbox.ID, Attempt: attempt}
	if p.try(op) {
		p.noteCreate(c, dead, attempt)
	}
}

// removing reports whether the instance with that attempt number is being removed: its logs and
// files have the same names as those of the next instance.
func (p *planner) removing(name string, attempt uint32) bool {
	for _, f := range p.in.InFlight {
		if f.Op.Kind == RemoveContainer && f.Op.Name == name && f.Op.Attempt == attempt {
			return true
		}
	}
	return false
}

// done reports whether a dead instance was the container's last. One that died with an older
// sandbox counts for app containers only: init containers run again.
func (p *planner) done(c *v1.Container, dead *Container) bool {
	if dead.Live() {
		return false
	}
	if pods.IsEphemeral(p.in.Pod, c.Name) {
		return true
	}
	if p.follows(c.Name, dead) {
		return false
	}
	if pods.IsInit(p.in.Pod, c.Name) && !p.inNewest(dead) && !pods.IsSidecar(c) {
		return dead.ExitCode != 0 && !pods.Restarts(p.in.Pod, c, dead.ExitCode)
	}
	return !pods.Restarts(p.in.Pod, c, dead.ExitCode)
}

// floor keeps restart counts from falling when instances were lost.
func (p *planner) floor(name string) uint32 {
	h := p.in.Record.history(name)
	n := max(h.Attempt, h.Before)
	if st := findStatus(&p.in.Reported, name); st != nil && st.RestartCount > 0 {
		n = max(n, uint32(st.RestartCount))
	}
	return n
}

// crashDue returns when a dead container may be started again.
func (v *view) crashDue(name string, dead *Container) time.Time {
	if dead.Finished.IsZero() || v.replaced(name, dead) || dead.ExitCode == 0 && dead.Lost && !pods.RestartsAll(pods.FindContainer(v.in.Pod, name), 0) {
		return time.Time{}
	}
	wait := crashWait(v.in.Record.history(name), dead, v.in.Node.crashLimit())
	if wait == 0 { // the runtime's clock may be slightly ahead
		return time.Time{}
	}
	if !dead.WaitsFrom.IsZero() {
		return dead.WaitsFrom.Add(wait)
	}
	return dead.Finished.Add(wait)
}

// noteCreate records, before a restart, how long the restart after it will wait.
func (p *planner) noteCreate(c *v1.Container, dead *Container, attempt uint32) {
	hook := c.Lifecycle != nil && c.Lifecycle.PostStart != nil
	h := p.plan.Record.history(c.Name)
	known := h.Attempt == attempt && (attempt > 0 || h.Wait > 0 || h.HookPending)
	if h.Applied == nil && (known && (h.HookPending || !hook) || dead == nil && !hook) {
		return
	}
	h.Applied, h.AppliedPod = nil, nil // a new instance starts with what is allocated
	if dead != nil && h.Attempt < attempt {
		h.Wait = nextWait(h, dead, p.in.Node.crashLimit())
	}
	h.Attempt, h.HookPending = attempt, hook
	p.plan.Record.setHistory(c.Name, h)
}

// imagesReady plans the pulls of the container's own image and of the images that it mounts, in
// parallel, and reports whether all are present.
func (p *planner) imagesReady(c *v1.Container, attempt uint32) bool {
	ready := p.imageReady(c, Op{Kind: PullImage, Name: c.Name, Image: c.Image, Attempt: attempt})
	for _, v := range ImageVolumes(p.in.Pod, c) {
		// Resolved once in a pod's life, so that a restarted container sees the same image.
		ready = p.imageReady(c, Op{Kind: PullImage, Name: VolumeImage(v.Name), Image: v.Image.Reference}) && ready
	}
	return ready
}

// ImageVolumes returns the image volumes that a container mounts.
func ImageVolumes(pod *v1.Pod, c *v1.Container) []*v1.Volume {
	var out []*v1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Image != nil && slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == v.Name }) {
			out = append(out, v)
		}
	}
	return out
}

// imageReady plans one pull, and reports whether the image is present.
func (p *planner) imageReady(c *v1.Container, op Op) bool {
	key := op.Key()
	if img, ok := p.in.Images[op.Name]; ok && img.Attempt == op.Attempt && img.Name == op.Image {
		return true
	}
	if p.keep(key) {
		p.wait("container %s: pulling image %q", c.Name, op.Image)
		return false
	}
	f, failed := p.in.Failures[key]
	if !failed || f.Objects != p.in.Objects {
		p.want(op)
		return false
	}
	p.wait("container %s: %s: %s", c.Name, f.Reason, f.Message)
	due := f.At.Add(retryAfter(PullImage, f.Count))
	if !due.After(p.now) {
		p.want(op)
		return false
	}
	p.recheck(due)
	if shown := f.At.Add(errImagePullShown); shown.After(p.now) {
		p.recheck(shown)
		return false
	}
	// Backed off: only check whether the image has appeared in another way. The check itself
	// updates the failure, see Failure.LookedAt.
	if look := f.LookedAt.Add(imageLook); look.After(p.now) {
		p.recheck(look)
	} else {
		op.Backoff = true
		p.want(op)
	}
	return false
}

// remove removes a dead instance after recording its final state.
func (p *planner) remove(o *Container) {
	p.noteLast(o)
	p.try(Op{Kind: RemoveContainer, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
}

// noteLast records the final state of an instance that is about to be removed, unless that of a
// newer one is recorded already.
func (p *planner) noteLast(o *Container) {
	if p.byName[o.Name][0] != o {
		return
	}
	h := p.plan.Record.history(o.Name)
	if h.Last != nil && (h.Last.ID == o.ID || h.Last.Attempt > o.Attempt) {
		return
	}
	last := *o
	h.Last, h.Attempt = &last, max(h.Attempt, o.Attempt)
	if last.State != Exited {
		last.State, last.Reason, last.ExitCode, last.Finished = Exited, ReasonStartError, 128, p.now
		last.Message = p.in.Failures[ContainerKey(o.Name)].Message
	}
	if all := p.plan.Record.RestartAll; all != nil && o.Name != all.Source && !last.Finished.Before(all.Since) {
		last.Reason, last.Message = ReasonRestartingAll, messageRestartingAll
	}
	p.plan.Record.setHistory(o.Name, h)
}

// drop removes an instance that was never started: there is nothing to stop, and runtimes differ in
// what a stop does to it. Only its attempt number is remembered.
func (p *planner) drop(o *Container) {
	if p.busy(o.Name) {
		p.wait("container %s waits until its start is cancelled", o.Name)
		return
	}
	if h := p.plan.Record.history(o.Name); h.Attempt < o.Attempt || h.Dropped < o.Attempt {
		h.Attempt, h.Dropped = max(h.Attempt, o.Attempt), o.Attempt
		p.plan.Record.setHistory(o.Name, h)
	}
	p.try(Op{Kind: RemoveContainer, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
}

// collectDead removes all dead instances of each container except the newest.
func (p *planner) collectDead() {
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		list := p.byName[name]
		if pods.FindContainer(p.in.Pod, name) == nil {
			continue
		}
		kept := false
		for _, o := range list {
			if o.Live() {
				continue
			}
			if kept {
				p.remove(o)
			}
			kept = true
		}
	}
}
