package explain

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/report"
)

// ReplicaSetFacts is what is known about a ReplicaSet.
type ReplicaSetFacts struct {
	Crowd
	Set *appsv1.ReplicaSet
}

// ReplicaSet explains why a ReplicaSet does not have its pods.
func ReplicaSet(f ReplicaSetFacts) Explanation {
	rs := f.Set
	e := newFindings("ReplicaSet", rs, f.About)
	c, want := sort(f.Pods, rs.Spec.MinReadySeconds, f.Now), orOne(rs.Spec.Replicas)
	if ref := metav1.GetControllerOf(rs); ref != nil && ref.Kind == "Deployment" {
		e.note("it belongs to deployment %s: wherry explain -n %s deploy/%s", ref.Name, rs.Namespace, ref.Name)
	}
	if e.deleted(rs) {
		return e.out
	}
	e.out.State = fmt.Sprintf("%d/%d available", len(c.available), want)
	if e.observed(rs, rs.Status.ObservedGeneration, "replica set controller") {
		e.replicaFailure(rs)
		e.held(c.unready, "")
		e.growing(c.young, rs.Spec.MinReadySeconds)
		if have := int32(len(c.available)); len(e.out.Waits) == 0 && have < want {
			e.wait(report.Wait{
				Step: "creation of " + count(want-have, "pod"), Said: "nothing was refused", Next: "the replica set controller creates them",
			})
		}
	}
	e.conclude(fmt.Sprintf("It has its pods: %d available, %d wanted.", len(c.available), want))
	if len(c.ending) > 0 {
		e.note("ending: %s", names(c.ending))
	}
	c.failures(&e)
	e.budgets(f.Pods, f.Budgets)
	return e.out
}
