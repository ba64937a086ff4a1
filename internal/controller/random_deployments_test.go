package controller_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	podsapi "wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/deployment"
	"wherry.dev/internal/controller/replicaset"
)

// together are controllers that run as one.
type together []controller.Controller

func (all together) Run(ctx context.Context) error {
	return controller.Together(len(all), func(i int) error { return all[i].Run(ctx) })
}

// rollouts is the life of a Deployment. In a strict one nobody but the controllers touches its pods or
// its size, and what they wrote they are told of, so that there are limits at every moment.
type rollouts struct {
	*life
	strict bool
	sets   cache.Store // what the controllers know
}

func newDeployment(r *rand.Rand) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(1 + r.IntN(6))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: templateOf("v0"), MinReadySeconds: int32(r.IntN(2) * r.IntN(5)),
		RevisionHistoryLimit: new(int32(r.IntN(4))), ProgressDeadlineSeconds: new(int32([]int{20, 600}[r.IntN(2)])),
		Strategy: anyStrategy(r),
	}}
	return d
}

func anyStrategy(r *rand.Rand) appsv1.DeploymentStrategy {
	if r.IntN(3) == 0 {
		return appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	surge, unavailable := r.IntN(4), r.IntN(3)
	if surge+unavailable == 0 {
		surge = 1
	}
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
		MaxSurge: new(intstr.FromInt(surge)), MaxUnavailable: new(intstr.FromInt(unavailable)),
	}}
}

// limits returns how many pods there may be, and how many have to be available.
func limits(d *appsv1.Deployment) (most, atLeast int) {
	n := int(*d.Spec.Replicas)
	if d.Spec.Strategy.RollingUpdate == nil {
		return n, 0
	}
	return n + d.Spec.Strategy.RollingUpdate.MaxSurge.IntValue(), n - d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue()
}

// check looks at what the controllers write.
func (l *rollouts) check(kind string, old, obj metav1.Object) {
	d := l.objects["deployments"][setKey].(*appsv1.Deployment)
	switch {
	case kind == "replicasets" && obj == nil:
		l.note("%s is removed", old.GetName())
	case kind == "replicasets":
		l.checkSize(d, old, obj.(*appsv1.ReplicaSet))
	case kind == "pods" && old == nil:
		l.checkCreated(d, obj.(*v1.Pod))
	case kind == "pods" && obj == nil:
		l.checkTaken(old.(*v1.Pod))
	}
}

// checkSize looks at the new size of a replica set: all together are within the surge, and what is
// taken is not known to be needed.
func (l *rollouts) checkSize(d *appsv1.Deployment, old metav1.Object, rs *appsv1.ReplicaSet) {
	was := 0
	if old != nil {
		was = int(*old.(*appsv1.ReplicaSet).Spec.Replicas)
	}
	is := int(*rs.Spec.Replicas)
	if is == was {
		return
	}
	l.note("%s (%s) goes from %d to %d", rs.Name, rs.Spec.Template.Spec.Containers[0].Image, was, is)
	if !l.strict {
		return
	}
	most, atLeast := limits(d)
	total, before, after := 0, 0, 0
	for _, o := range l.objects["replicasets"] {
		other := o.(*appsv1.ReplicaSet)
		n := int(*other.Spec.Replicas)
		total += n
		after += min(n, l.knownAvailable(other))
		if other.UID == rs.UID {
			n = was
		}
		before += min(n, l.knownAvailable(other))
	}
	if is > was && total > most {
		l.wrong("%d replicas, more than %d", total, most)
	}
	if after < before && after < atLeast {
		l.wrong("of %d available pods %d are left, fewer than %d", before, after, atLeast)
	}
}

func (l *rollouts) knownAvailable(rs *appsv1.ReplicaSet) int {
	item, exists, err := l.sets.GetByKey("a/" + rs.Name)
	if err != nil {
		l.wrong("%v", err)
	}
	if !exists {
		return 0
	}
	return int(item.(*appsv1.ReplicaSet).Status.AvailableReplicas)
}

// checkCreated looks at a new pod: its replica set has no more than it asks for, and with Recreate no
// other one has a pod.
func (l *rollouts) checkCreated(d *appsv1.Deployment, p *v1.Pod) {
	l.note("%s is created, %s", p.Name, p.Spec.Containers[0].Image)
	if !l.strict {
		return
	}
	mine, others := l.count(p)
	if _, most := l.asked(p); mine > most {
		l.wrong("%d pods like %s, whose replica set asks for %d", mine, p.Name, most)
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType && others > 0 {
		l.wrong("%s is created, and there are %d pods of other templates", p.Name, others)
	}
}

// checkTaken looks at a pod that is deleted: its replica set has as many others as it asks for.
func (l *rollouts) checkTaken(p *v1.Pod) {
	l.note("%s is deleted", p.Name)
	if !l.strict {
		return
	}
	mine, _ := l.count(p)
	if atLeast, _ := l.asked(p); mine-1 < atLeast {
		l.wrong("%s is deleted, and leaves %d, fewer than the %d that its replica set asks for", p.Name, mine-1, atLeast)
	}
}

// count returns how many active pods the replica set of this one has, and how many pods others have.
func (l *rollouts) count(p *v1.Pod) (mine, others int) {
	for _, o := range l.objects["pods"] {
		switch other := o.(*v1.Pod); {
		case metav1.GetControllerOf(other).UID != metav1.GetControllerOf(p).UID:
			others++
		case podsapi.IsActive(other):
			mine++
		}
	}
	return mine, others
}

// asked returns how many pods the replica set of this one asks for. Its controller may not know the
// newest number yet, so there are two of them.
func (l *rollouts) asked(p *v1.Pod) (low, high int) {
	key := "a/" + metav1.GetControllerOf(p).Name
	live, ok := l.objects["replicasets"][key]
	known, exists, err := l.sets.GetByKey(key)
	if !ok || !exists || err != nil {
		l.wrong("%s is unknown: %v", key, err)
		return 0, 0
	}
	a, b := int(*live.(*appsv1.ReplicaSet).Spec.Replicas), int(*known.(*appsv1.ReplicaSet).Spec.Replicas)
	return min(a, b), max(a, b)
}

func (l *rollouts) changeDeployment(what string, f func(*appsv1.Deployment)) {
	l.note("%s", what)
	l.change("deployments", setKey, func(o object) bool { f(o.(*appsv1.Deployment)); return true })
}

func (l *rollouts) act(*life) {
	n := l.rand.IntN(30)
	switch {
	case n == 0 || n == 1:
		image := fmt.Sprint("v", l.rand.IntN(5))
		l.changeDeployment("update to "+image, func(d *appsv1.Deployment) { d.Spec.Template = templateOf(image) })
	case n == 2:
		l.changeDeployment("pause or resume", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused })
	case n == 3:
		l.changeDeployment("roll back", func(d *appsv1.Deployment) {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, appsv1.DeprecatedRollbackTo, "0")
		})
	case n < 9 && !l.strict:
		l.meddle(n)
	default:
		if p := l.any(); p != nil {
			l.attend(p, l.strict || l.rand.IntN(15) > 0 || !isReady(p))
		}
	}
}

// meddle does what only others than the controllers do.
func (l *rollouts) meddle(n int) {
	switch p := l.any(); {
	case n == 4:
		to := int32(l.rand.IntN(7))
		l.changeDeployment(fmt.Sprint("scale to ", to), func(d *appsv1.Deployment) { d.Spec.Replicas = &to })
	case n == 5:
		strategy := anyStrategy(l.rand)
		l.changeDeployment(fmt.Sprint("strategy ", strategy.Type), func(d *appsv1.Deployment) { d.Spec.Strategy = strategy })
	case p == nil:
	case n == 6:
		l.note("somebody deletes %s", p.Name)
		l.change("pods", "a/"+p.Name, func(o object) bool { o.SetDeletionTimestamp(new(metav1.Now())); return true })
	case n == 7:
		app := []string{"web", "other"}[l.rand.IntN(2)]
		l.note("%s is labelled %s", p.Name, app)
		l.change("pods", "a/"+p.Name, func(o object) bool { o.GetLabels()["app"] = app; return true })
	case p.Status.Phase == v1.PodFailed:
		l.note("%s is collected", p.Name)
		l.change("pods", "a/"+p.Name, func(object) bool { return false })
	}
}

// rest checks that the rollout has ended, and that the status tells of it.
func (l *rollouts) rest(*life) {
	d := l.all("deployments")[0].(*appsv1.Deployment)
	n := *d.Spec.Replicas
	var current *appsv1.ReplicaSet
	old := 0
	for _, o := range l.all("replicasets") {
		rs := o.(*appsv1.ReplicaSet)
		switch {
		case !metav1.IsControlledBy(rs, d):
			l.wrong("%s is an orphan", rs.Name)
		case rs.Spec.Template.Spec.Containers[0].Image != d.Spec.Template.Spec.Containers[0].Image:
			old++
			if *rs.Spec.Replicas != 0 || rs.Status.Replicas != 0 {
				l.wrong("%s is old and asks for %d, has %d", rs.Name, *rs.Spec.Replicas, rs.Status.Replicas)
			}
		case current != nil:
			l.wrong("%s and %s have the same template", rs.Name, current.Name)
		default:
			current = rs
		}
	}
	const revision = "deployment.kubernetes.io/revision"
	switch {
	case current == nil:
		l.wrong("no replica set has the template")
		return
	case *current.Spec.Replicas != n || current.Annotations[revision] != d.Annotations[revision] || d.Annotations[revision] == "":
		l.wrong("%s asks for %d and has revision %s; want %d, %s", current.Name, *current.Spec.Replicas, current.Annotations[revision], n, d.Annotations[revision])
	case old > int(*d.Spec.RevisionHistoryLimit):
		l.wrong("%d old replica sets, more than %d", old, *d.Spec.RevisionHistoryLimit)
	}
	l.podsRest(current, n)
	l.statusRests(d)
}

// podsRest checks that each pod that counts is one of n of the current replica set.
func (l *rollouts) podsRest(current *appsv1.ReplicaSet, n int32) {
	have := int32(0)
	for _, o := range l.all("pods") {
		p := o.(*v1.Pod)
		if !podsapi.IsActive(p) || metav1.GetControllerOf(p) == nil && !l.wanted(p) {
			continue
		}
		have++
		if !isReady(p) || !metav1.IsControlledBy(p, current) {
			l.wrong("%s is ready: %v, and has owner %v", p.Name, isReady(p), p.OwnerReferences)
		}
	}
	if have != n {
		l.wrong("%d pods, want %d", have, n)
	}
}

// wanted reports whether there is a replica set for an orphan. One that was labelled otherwise, and back
// again after its replica set went with the history, stays alone, as upstream's.
func (l *rollouts) wanted(orphan *v1.Pod) bool {
	return slices.ContainsFunc(l.all("replicasets"), func(o object) bool {
		s := claim.Selector(o.(*appsv1.ReplicaSet).Spec.Selector)
		return s != nil && s.Matches(k8slabels.Set(orphan.Labels))
	})
}

func (l *rollouts) statusRests(d *appsv1.Deployment) {
	n, st := *d.Spec.Replicas, d.Status
	if st.ObservedGeneration != d.Generation || st.Replicas != n || st.UpdatedReplicas != n || st.ReadyReplicas != n || st.AvailableReplicas != n || st.UnavailableReplicas != 0 {
		l.wrong("status %+v of %d replicas, generation %d", st, n, d.Generation)
	}
	says := map[appsv1.DeploymentConditionType]string{}
	for _, c := range st.Conditions {
		says[c.Type] = string(c.Status) + " " + c.Reason
	}
	if says[appsv1.DeploymentAvailable] != "True MinimumReplicasAvailable" || says[appsv1.DeploymentProgressing] != "True NewReplicaSetAvailable" {
		l.wrong("conditions %v", says)
	}
}

// Updates, also many at once, never have more pods than maxSurge lets them, nor fewer available ones than
// maxUnavailable, Recreate never runs two templates, and each rollout ends.
func TestLivesOfDeployments(t *testing.T) {
	for seed := range lifetimes(t) {
		if !liveOfDeployment(t, seed) {
			return
		}
	}
}

func liveOfDeployment(t *testing.T, seed uint64) (ok bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var r *rollouts
		ok = play(t, seed, func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
			r = &rollouts{life: l, strict: seed%2 == 1, sets: f.Apps().V1().ReplicaSets().Informer().GetStore()}
			l.add("deployments", newDeployment(l.rand))
			l.onWrite, l.honest = r.check, r.strict
			l.calmed = func() {
				r.changeDeployment("resume", func(d *appsv1.Deployment) { d.Spec.Paused = false })
			}
			sets, err1 := replicaset.New(l.Clientset, f)
			deployments, err2 := deployment.New(l.Clientset, f)
			return together{sets, deployments}, errors.Join(err1, err2)
		}, func(l *life) { r.act(l) }, func(l *life) { r.rest(l) })
	})
	return ok
}
