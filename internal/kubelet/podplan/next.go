package podplan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// planner builds one plan.
type planner struct {
	*view
	now    time.Time
	plan   Plan
	wanted map[Key]bool
	// hookBy is the container whose postStart hook the later containers wait for.
	hookBy string
}

// Next decides what should be in flight for the pod from now on.
//
//  1. A pod that was not admitted yet waits; one that must end is taken down.
//  2. Otherwise cgroup, volumes, images and sandbox are prepared in parallel,
//  3. init containers are started one by one (sidecars keep running),
//  4. and then the app containers, each independently.
//  5. Dead instances beyond the newest of each container are removed.
func Next(in Input, now time.Time) Plan {
	now = now.Round(0).UTC()
	p := &planner{view: newView(&in), now: now, wanted: map[Key]bool{}}
	p.plan.Record = in.Record.clone()
	p.noteStart()
	if end, ok := p.ending(); ok {
		p.end(end)
	} else if in.Record.Verdict == nil {
		p.plan.Life = PodPending
		p.wait("waits for admission on the node")
	} else {
		p.run()
	}
	p.finishRemovals()
	p.noteHooks()
	return p.plan
}

// finishRemovals lets removals run to completion even if the runtime already shows that the object
// is gone: logs and links have to be removed too.
func (p *planner) finishRemovals() {
	for _, key := range slices.Sorted(maps.Keys(p.in.InFlight)) {
		switch p.in.InFlight[key].Op.Kind {
		case RemoveContainer, RemoveSandbox, StopSandbox, ClearVolumes, UnprepareClaims, RemoveCgroup:
			p.keep(key)
		}
	}
}

func (p *planner) noteStart() {
	r := &p.plan.Record
	if !r.StartTime.IsZero() {
		return
	}
	r.StartTime = p.now
	if t := p.in.Reported.StartTime; t != nil {
		r.StartTime = t.UTC()
	}
}

// noteHooks records which postStart hooks are over.
func (p *planner) noteHooks() {
	for name, h := range p.in.Record.Containers {
		if !h.HookPending {
			continue
		}
		last := p.last(name)
		if last == nil || last.Attempt != h.Attempt {
			continue
		}
		if hook, ok := p.in.Hooks[last.ID]; (ok && hook.Done) || !last.Live() {
			h = p.plan.Record.history(name)
			h.HookPending = false
			p.plan.Record.setHistory(name, h)
		}
	}
}

// want adds an op to the plan.
func (p *planner) want(op Op) {
	if k := op.Key(); !p.wanted[k] {
		p.wanted[k] = true
		p.plan.Ops = append(p.plan.Ops, op)
	}
}

// keep leaves an op in flight alone, whatever it is, and reports whether there is one.
func (p *planner) keep(k Key) bool {
	f, ok := p.in.InFlight[k]
	if ok && !f.Canceled {
		p.want(f.Op)
	}
	return ok
}

// try adds an op unless it failed just now; then it plans the next look for when it is due.
func (p *planner) try(op Op) bool {
	if due := p.due(op); due.After(p.now) {
		p.recheck(due)
		p.wait("%s: %s", op.Kind, p.in.Failures[op.Key()].Message)
		return false
	}
	p.want(op)
	return true
}

// due returns when an op may be retried; the zero time if at once.
func (p *planner) due(op Op) time.Time {
	f, failed := p.in.Failures[op.Key()]
	if _, flying := p.in.InFlight[op.Key()]; !failed || flying || f.Objects != p.in.Objects {
		return time.Time{}
	}
	if f.Fatal {
		return p.now.Add(mountMax)
	}
	return f.At.Add(retryAfter(op.Kind, f.Count))
}

func (p *planner) recheck(at time.Time) {
	if p.plan.RecheckAt.IsZero() || at.Before(p.plan.RecheckAt) {
		p.plan.RecheckAt = at
	}
}

func (p *planner) wait(format string, args ...any) {
	p.plan.Waiting = append(p.plan.Waiting, fmt.Sprintf(format, args...))
}

// run plans a pod that is to run.
func (p *planner) run() {
	defer p.noteLife()
	p.checkDeadline()
	p.prepare()
	ready := p.bringSandbox()
	if !ready {
		p.plan.Record.RestartAll = nil // a new sandbox starts from the beginning anyway
	} else if p.restartAll() {
		return
	}
	p.bringContainers(ready)
	p.bringResize()
	p.collectDead()
}

// noteLife sets the plan's Life: the pod is running once it is initialised according to the new
// record.
func (p *planner) noteLife() {
	v, in := *p.view, *p.in
	in.Record, v.in = p.plan.Record, &in
	p.plan.Life = PodPending
	if v.initialised() {
		p.plan.Life = PodRunning
	}
}

func (p *planner) checkDeadline() {
	if at, ok := p.deadline(); ok {
		p.recheck(at)
	}
}

// deadline returns when activeDeadlineSeconds ends the pod.
func (p *planner) deadline() (time.Time, bool) {
	s := p.in.Pod.Spec.ActiveDeadlineSeconds
	if s == nil || p.plan.Record.StartTime.IsZero() {
		return time.Time{}, false
	}
	return p.plan.Record.StartTime.Add(time.Duration(*s) * time.Second), true
}

// prepare plans the cgroup and every volume, and renews volumes whose objects changed or whose
// tokens are getting old.
func (p *planner) prepare() {
	if p.in.Node.CgroupsManaged && !p.in.CgroupReady {
		p.try(Op{Kind: EnsureCgroup})
	}
	for i := range p.in.Pod.Spec.Volumes {
		v := &p.in.Pod.Spec.Volumes[i]
		if v.Image != nil {
			continue // pulled for the containers that mount it, see imagesReady
		}
		state := p.in.Volumes[v.Name]
		if p.keep(VolumeKey(v.Name)) {
			continue
		}
		switch {
		case !state.Mounted:
			p.try(Op{Kind: MountVolume, Name: v.Name, Objects: p.in.Objects})
		case usesObjects(v) && state.Objects != p.in.Objects,
			!state.RefreshAt.IsZero() && !p.now.Before(state.RefreshAt):
			p.try(Op{Kind: MountVolume, Name: v.Name, Objects: p.in.Objects})
		case !state.RefreshAt.IsZero():
			p.recheck(state.RefreshAt)
		}
	}
}

// bringSandbox plans the steps to a working sandbox, and reports whether there is one. Whatever
// still runs in an older one is stopped first.
func (p *planner) bringSandbox() bool {
	clear := true
	for i := range p.in.Containers {
		if c := &p.in.Containers[i]; c.Live() && !p.here(c) {
			clear = false
			p.halt(c, "SandboxChanged", "Stopping container "+c.Name)
		}
	}
	for i := range p.in.Sandboxes {
		s := &p.in.Sandboxes[i]
		if s == p.sandbox || !clear || p.beingMade(s) {
			continue
		}
		if s.Ready {
			clear = false
			p.try(Op{Kind: StopSandbox, ID: s.ID})
		} else if !p.needed(s) {
			p.try(Op{Kind: RemoveSandbox, ID: s.ID})
		}
	}
	if p.sandbox != nil {
		return true
	}
	if clear && !p.keep(SandboxKey) {
		p.try(Op{Kind: RunSandbox, Attempt: p.nextSandbox()})
	}
	return false
}

func (p *planner) nextSandbox() uint32 {
	if p.newest == nil {
		return 0
	}
	return p.newest.Attempt + 1
}

// needed reports whether a dead sandbox still holds containers whose state and log users may ask
// for. The newest sandbox is also what shows how far initialisation got.
func (p *planner) needed(s *Sandbox) bool {
	return s == p.newest ||
		slices.ContainsFunc(p.in.Containers, func(c Container) bool { return c.SandboxID == s.ID })
}

// bringContainers plans the containers that may run by now.
func (p *planner) bringContainers(ready bool) {
	pod := p.in.Pod
	if ready {
		for i := range pod.Spec.EphemeralContainers {
			c := (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if last := p.last(c.Name); last == nil || last.Live() {
				p.advance(c, ready)
			}
		}
	}
	if p.sandbox == nil || !p.initialised() {
		p.bringInit(ready)
		return
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; pods.IsSidecar(c) {
			p.advance(c, ready)
		}
	}
	p.bringApps(ready)
}

// bringApps starts the app containers, each independently except for postStart hooks: those after a
// container that has one start when its hook is over. Proxies that must be ready before the
// containers that they serve rely on that.
func (p *planner) bringApps(ready bool) {
	for i := range p.in.Pod.Spec.Containers {
		c := &p.in.Pod.Spec.Containers[i]
		p.advance(c, ready)
		if p.hookBy == "" && p.hookComes(c) {
			p.hookBy = c.Name
		}
	}
}

// hookComes reports whether the postStart hook of a container is running or can still be expected
// to. A container that fails to come up holds nothing back.
func (p *planner) hookComes(c *v1.Container) bool {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return false
	}
	last := p.last(c.Name)
	if last != nil && last.State == Running && !last.Lost {
		return !p.hookDone(c, last) && p.in.Hooks[last.ID].Failed == ""
	}
	if _, failed := p.in.Failures[ContainerKey(c.Name)]; failed {
		return false
	}
	for key := range p.in.Failures {
		if strings.HasPrefix(string(key), string(ImageKey(c.Name, ""))) {
			return false
		}
	}
	return last == nil || last.State == Created || !p.done(c, last) && !p.crashDue(c.Name, last).After(p.now)
}

// bringInit walks the init containers in order up to the first that holds the others back. When
// there is none, it is the app containers' turn.
func (p *planner) bringInit(ready bool) {
	pod := p.in.Pod
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := p.last(c.Name)
		if p.passed(i) {
			continue
		}
		if !p.here(last) && last != nil && !last.Live() {
			// It belongs to an older sandbox: initialisation starts again.
			p.advance(c, ready)
			p.holdOthers(i + 1)
			return
		}
		if pods.IsSidecar(c) {
			p.advance(c, ready)
			if !p.started(c, last) || !p.here(last) {
				p.wait("init container %s has not started", c.Name)
				p.holdOthers(i + 1)
				return
			}
			continue
		}
		if last != nil && last.State == Exited && last.ExitCode == 0 {
			continue
		}
		p.advance(c, ready)
		p.wait("init container %s has not completed", c.Name)
		p.holdOthers(i + 1)
		return
	}
	p.bringApps(ready)
}

// holdOthers leaves what is in flight for later init containers alone.
func (p *planner) holdOthers(from int) {
	for i := from; i < len(p.in.Pod.Spec.InitContainers); i++ {
		p.keep(ContainerKey(p.in.Pod.Spec.InitContainers[i].Name))
	}
}
