package podplan

import (
	"time"

	"wherry.dev/internal/api/pods"
)

// minStop is the time that a container has to shut down if its grace period is zero or was used up
// before its turn came.
const minStop = 2 * time.Second

// stopping leaves a stop in flight alone, together with a hook that still runs beside it, and
// reports whether there is one.
func (p *planner) stopping(o *Container) bool {
	if !p.keep(StopKey(o.ID)) {
		return false
	}
	p.keep(PreStopKey(o.ID))
	return true
}

// halt stops an instance that runs, and drops one that was never started.
func (p *planner) halt(o *Container, reason, message string) {
	if o.State == Created {
		p.drop(o)
		return
	}
	p.stop(o, reason, message)
}

// stop stops one instance within its grace period, counted from when the stop began.
func (p *planner) stop(o *Container, reason, message string) {
	p.watchReadiness(o)
	if p.stopping(o) {
		return
	}
	g := grace(p.in.Pod)
	if probe := p.in.Probes[o.ID]; probe.Failed != "" && probe.Grace != nil {
		g = *probe.Grace
	}
	p.hookAndStop(o, Op{
		Kind: StopContainer, Name: o.Name, ID: o.ID, Reason: reason, Message: message,
		Deadline: p.now.Add(time.Duration(g) * time.Second),
	}, time.Time{})
}

// stopBy stops an instance of a pod that is ending, by the deadline but not before soonest. An
// earlier deadline replaces a stop in flight.
func (p *planner) stopBy(c *Container, deadline, soonest time.Time) {
	p.watchReadiness(c)
	p.hookAndStop(c, endOp(c, deadline), soonest)
}

// endOp stops an instance because its pod ends.
func endOp(c *Container, deadline time.Time) Op {
	return Op{Kind: StopContainer, Name: c.Name, ID: c.ID, Deadline: deadline, Message: "Stopping container " + c.Name}
}

// hookAndStop runs the preStop hook, and stops the instance when the hook is over or the deadline
// has come. In the latter case the hook continues until the container has ended.
func (p *planner) hookAndStop(o *Container, op Op, soonest time.Time) {
	hook, begun, runs := p.preStop(o, op)
	if begun {
		op.Reason, op.Message = hook.Reason, hook.Message
		if hook.Deadline.Before(op.Deadline) {
			op.Deadline = hook.Deadline // it counts from when the hook began
		}
		if runs && op.Deadline.After(p.now) {
			p.recheck(op.Deadline)
			p.wait("preStop hook of container %s is running, until %s at the latest", o.Name, op.Deadline.UTC().Format(time.RFC3339))
			return
		}
		soonest = p.now.Add(minStop)
	}
	op.Deadline = later(op.Deadline, soonest)
	if f, ok := p.in.InFlight[op.Key()]; ok && !f.Canceled && !op.Deadline.Before(f.Op.Deadline) {
		p.want(f.Op)
		return
	}
	p.try(op)
	p.wait("container %s is stopping, until %s at the latest", o.Name, op.Deadline.UTC().Format(time.RFC3339))
}

// preStop runs the preStop hook of an instance that is to stop, once, if it has one and there is
// time. It returns the hook, whether it was started, and whether it is still running.
func (p *planner) preStop(o *Container, stop Op) (hook Op, begun, runs bool) {
	if hook, begun, runs = p.hookOf(o); begun {
		if runs {
			p.keep(hook.Key())
		}
		return hook, true, runs
	}
	spec := pods.FindContainer(p.in.Pod, o.Name)
	none := spec != nil && (spec.Lifecycle == nil || spec.Lifecycle.PreStop == nil) // an orphan's is annotated
	if none || o.State != Running || !stop.Deadline.After(p.now) {
		return Op{}, false, false
	}
	stop.Kind = RunPreStop
	p.want(stop)
	return stop, true, true
}

// hookOf returns the preStop hook that was started for an instance.
func (p *planner) hookOf(o *Container) (hook Op, begun, runs bool) {
	if f, ok := p.in.InFlight[PreStopKey(o.ID)]; ok {
		return f.Op, true, true
	}
	hook, over := p.in.PreStops[o.ID]
	return hook, over, false
}

func (p *planner) watchReadiness(c *Container) {
	if spec := pods.FindContainer(p.in.Pod, c.Name); spec != nil && c.State == Running && p.started(spec, c) {
		p.plan.Probes = append(p.plan.Probes, ProbeTarget{ID: c.ID, Name: c.Name, Since: c.Started, Started: true, Ending: true})
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
