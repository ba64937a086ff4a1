package podplan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

const (
	// ReasonRestartingAll is why a container waits, or ended, while its pod starts again.
	ReasonRestartingAll = "RestartingAllContainers"
	// ReasonRestartAll is why such a container is stopped: its preStop hook does not run.
	ReasonRestartAll = "RestartAllContainers"

	messageRestartingAll = "The container is removed because RestartAllContainers in place"
	reasonRestartAllOn   = "RestartAllContainersStarted"
	messageRestartAllOn  = "container exited with restart policy rule"
)

// RestartAll records that all containers of a pod are being removed, to start again in the same
// sandbox (KEP-5532).
type RestartAll struct {
	Since time.Time
	// Source is the container whose exit caused it.
	Source string
}

// restartAll plans, once an exit has asked for it, the removal of all containers: the live ones are
// stopped, then all are removed, the one that asked for it last. It reports whether that is still
// under way. Afterwards the pod begins with its first init container. The container that exited is
// backed off as usual; the others are not.
func (p *planner) restartAll() bool {
	now := p.plan.Record.RestartAll
	if now == nil {
		source := p.exitForAll()
		if source == "" {
			return false
		}
		now = p.beginRestartAll(source)
	}
	left := false
	last := true // nothing but the source is left
	for c := range pods.Containers(&p.in.Pod.Spec) {
		if list := p.byName[c.Name]; len(list) > 0 && c.Name != now.Source && list[0].State != Created {
			p.replace(list[0]) // including one whose start was under way when the restart began
		}
		// Wait for what is being created or started: if canceled, it could still come up later.
		making := p.keep(ContainerKey(c.Name))
		left = left || making || len(p.byName[c.Name]) > 0
		last = last && (c.Name == now.Source || !making && len(p.byName[c.Name]) == 0)
		for _, o := range p.live(c.Name) {
			if o.State == Created {
				p.drop(o)
			} else if !p.stopping(o) {
				p.try(Op{
					Kind: StopContainer, Name: o.Name, ID: o.ID, Reason: ReasonRestartAll,
					Message: "Stopping container " + o.Name, Deadline: p.now.Add(minStop),
				})
			}
		}
	}
	if !left {
		p.plan.Record.RestartAll = nil
		return false
	}
	p.wait("all containers are being restarted because %s exited", now.Source)
	for c := range pods.Containers(&p.in.Pod.Spec) {
		if c.Name != now.Source || last {
			p.removeDead(c.Name)
		}
	}
	return true
}

// exitForAll returns the container whose newest instance asks for a restart of all.
func (p *planner) exitForAll() string {
	for c := range pods.Containers(&p.in.Pod.Spec) {
		list := p.byName[c.Name]
		if len(list) == 0 || list[0].Live() || !p.inNewest(list[0]) || p.busy(c.Name) {
			continue
		}
		if pods.RestartsAll(c, list[0].ExitCode) {
			return c.Name
		}
	}
	return ""
}

// beginRestartAll records that all containers are to be replaced, whatever their restart policies
// say.
func (p *planner) beginRestartAll(source string) *RestartAll {
	now := &RestartAll{Since: p.now, Source: source}
	p.plan.Record.RestartAll = now
	for c := range pods.Containers(&p.in.Pod.Spec) {
		if last := p.last(c.Name); last != nil && c.Name != source {
			p.replace(last)
		}
	}
	return now
}

// removeDead removes a container's dead instances, the newest last, because its final state is the
// one to be remembered.
func (p *planner) removeDead(name string) {
	list := p.byName[name]
	for i, o := range slices.Backward(list) {
		if o.Live() || i == 0 && len(list) > 1 {
			continue
		}
		p.remove(o)
	}
}

// restartingAll returns the condition AllContainersRestarting, for pods that can have it.
func (r *reporter) restartingAll(st *v1.PodStatus) []v1.PodCondition {
	if !pods.CanRestartAll(r.in.Pod) {
		return nil
	}
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case st.Phase == v1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case st.Phase == v1.PodFailed:
		c.Reason = reasonPodFailed
	case r.in.Record.RestartAll != nil && r.ending == nil:
		c.Status, c.Reason, c.Message = v1.ConditionTrue, reasonRestartAllOn, messageRestartAllOn
	}
	return []v1.PodCondition{r.stamp(c)}
}
