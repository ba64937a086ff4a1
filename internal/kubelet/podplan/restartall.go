package podplan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// ReasonRestartingAll is why a container waits, or ended, while its pod begins anew.
	ReasonRestartingAll = "RestartingAllContainers"
	// ReasonRestartAll is why such a container is stopped: its preStop hook does not run.
	ReasonRestartAll = "RestartAllContainers"

	messageRestartingAll = "The container is removed because RestartAllContainers in place"
	reasonRestartAllOn   = "RestartAllContainersStarted"
	messageRestartAllOn  = "container exited with restart policy rule"
)

// RestartAll says that all containers of a pod are taken away, to begin anew in the
// same sandbox (KEP-5532).
type RestartAll struct {
	Since time.Time
	// Source is the container whose exit asked for it.
	Source string
}

// exitRule returns what the first matching rule of a container says of an exit.
func exitRule(c *v1.Container, exitCode int32) (v1.ContainerRestartRuleAction, bool) {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if in {
				return rule.Action, true
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !in {
				return rule.Action, true
			}
		}
	}
	return "", false
}

// couldRestartAll tells whether an exit can ask for a restart of all containers.
func couldRestartAll(pod *v1.Pod) bool {
	for _, c := range ordinary(pod) {
		for _, rule := range c.RestartPolicyRules {
			if rule.Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// ordinary are the init containers and containers of a pod.
func ordinary(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out = append(out, &list[i])
		}
	}
	return out
}

// restartAll plans, once an exit asked for it, that all containers go: the live ones
// are stopped, then all are removed, whose exit it was last. It tells whether it is
// still at that. Then the pod begins with its first init container. The container
// that exited is backed off as ever; the others are not.
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
	for _, c := range ordinary(p.in.Pod) {
		if list := p.byName[c.Name]; len(list) > 0 && c.Name != now.Source && list[0].State != Created {
			p.replace(list[0]) // also one whose start was under way when it began
		}
		// What is being made or started is waited for: cut off, it could come up later.
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
	p.wait("all containers are restarted, for %s exited", now.Source)
	for _, c := range ordinary(p.in.Pod) {
		if c.Name != now.Source || last {
			p.removeDead(c.Name)
		}
	}
	return true
}

// exitForAll is the container whose newest instance asks for a restart of all.
func (p *planner) exitForAll() string {
	for _, c := range ordinary(p.in.Pod) {
		list := p.byName[c.Name]
		if len(list) == 0 || list[0].Live() || !p.inNewest(list[0]) || p.busy(c.Name) {
			continue
		}
		if asksForAll(c, list[0].ExitCode) {
			return c.Name
		}
	}
	return ""
}

// asksForAll tells whether an exit code of a container asks for a restart of all.
func asksForAll(c *v1.Container, code int32) bool {
	if c == nil {
		return false
	}
	action, ok := exitRule(c, code)
	return ok && action == v1.ContainerRestartRuleActionRestartAllContainers
}

// beginRestartAll records that all containers are to be replaced, whatever their
// policies say.
func (p *planner) beginRestartAll(source string) *RestartAll {
	now := &RestartAll{Since: p.now, Source: source}
	p.plan.Record.RestartAll = now
	for _, c := range ordinary(p.in.Pod) {
		if last := p.last(c.Name); last != nil && c.Name != source {
			p.replace(last)
		}
	}
	return now
}

// removeDead removes a container's dead instances, the newest last: it is what is
// remembered.
func (p *planner) removeDead(name string) {
	list := p.byName[name]
	for i, o := range slices.Backward(list) {
		if o.Live() || i == 0 && len(list) > 1 {
			continue
		}
		p.remove(o)
	}
}

// restartingAll is the condition AllContainersRestarting, of pods that can.
func (r *reporter) restartingAll(st *v1.PodStatus) []v1.PodCondition {
	if !couldRestartAll(r.in.Pod) {
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
