package deployment

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// rollbackTo returns the revision that the annotation asks for: 0 is the last one before the current.
// What is no number is ignored.
func rollbackTo(d *appsv1.Deployment) (revision int64, wanted bool) {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return n, err == nil
}

// rollBack gives the Deployment the template and the annotations of an older ReplicaSet. In any case
// it removes the wish for it. What follows from the new template is a matter of the next plan.
func (p *planner) rollBack(revision int64) plan {
	next := p.deployment.DeepCopy()
	delete(next.Annotations, appsv1.DeprecatedRollbackTo)
	out := p.plan(p.deployment.Status)
	out.status, out.steps = nil, append(out.steps, step{spec: next, event: p.revert(next, revision)})
	return out
}

// revert changes the Deployment, and says what happened.
func (p *planner) revert(next *appsv1.Deployment, revision int64) *event {
	if revision == 0 {
		if revision = p.secondRevision(); revision == 0 {
			return &event{v1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision."}
		}
	}
	for _, m := range p.members() {
		if n, ok := m.revision(); !ok || n != revision {
			continue
		}
		if sameTemplate(&next.Spec.Template, &m.Spec.Template) {
			return &event{v1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
				fmt.Sprintf("The rollback revision contains the same template as current deployment %q", next.Name)}
		}
		takeFrom(next, m)
		return &event{v1.EventTypeNormal, "DeploymentRollback", fmt.Sprintf("Rolled back deployment %q to revision %d", next.Name, revision)}
	}
	return &event{v1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to."}
}

// takeFrom gives the Deployment a ReplicaSet's template, and the annotations that it had when that was
// made: the cause of the change among them.
func takeFrom(d *appsv1.Deployment, m *member) {
	d.Spec.Template = *m.Spec.Template.DeepCopy()
	d.Spec.Template.Labels = withoutHash(d.Spec.Template.Labels)
	annotations := map[string]string{}
	for k, v := range d.Annotations {
		if own(k) {
			annotations[k] = v
		}
	}
	for k, v := range m.annotations {
		if !own(k) {
			annotations[k] = v
		}
	}
	d.Annotations = annotations
}

// secondRevision returns the second highest number of all ReplicaSets.
func (p *planner) secondRevision() int64 {
	var first, second int64
	for _, m := range p.members() {
		switch n, ok := m.revision(); {
		case !ok:
		case n >= first:
			first, second = n, first
		case n > second:
			second = n
		}
	}
	return second
}
