package statefulset

import (
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// count sets the status that follows from the pods as they are.
func (p *planner) count() {
	st := &p.out.status
	*st = appsv1.StatefulSetStatus{
		ObservedGeneration: p.set.Generation, CurrentRevision: p.current.name, UpdateRevision: p.update.name,
		CollisionCount: new(int32), Conditions: p.set.Status.Conditions,
	}
	if p.collisions != nil {
		*st.CollisionCount = *p.collisions
	}
	for _, pod := range p.pods {
		if _, ok := ordinalOf(p.set, pod.Name); ok && pod.Status.Phase != "" {
			p.countOne(pod)
		}
	}
}

func (p *planner) countOne(pod *v1.Pod) {
	st := &p.out.status
	st.Replicas++
	if _, ready := pods.ReadySince(pod); ready && pod.Status.Phase == v1.PodRunning {
		st.ReadyReplicas++
		wait, ever := pods.AvailableIn(pod, p.set.Spec.MinReadySeconds, p.now)
		switch {
		case ever && wait == 0:
			st.AvailableReplicas++
		case ever && (p.out.recheck == 0 || wait < p.out.recheck):
			p.out.recheck = wait
		}
	}
	if pod.DeletionTimestamp != nil {
		return
	}
	if revisionOf(pod) == p.current.name {
		st.CurrentReplicas++
	}
	if revisionOf(pod) == p.update.name {
		st.UpdatedReplicas++
	}
}

// complete ends a rollout: once all pods have the new revision and are ready, it is the current one.
func (p *planner) complete() {
	st, n := &p.out.status, int32(size(p.set))
	if p.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		st.UpdatedReplicas == n && st.ReadyReplicas == n && st.Replicas == n {
		st.CurrentReplicas, st.CurrentRevision = st.UpdatedReplicas, st.UpdateRevision
	}
}
