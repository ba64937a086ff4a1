package controller_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/daemonset"
	"wherry.dev/internal/controller/statefulset"
)

// life is one random life of a workload on a hostile API.
type life struct {
	*hostileAPI
	t    *testing.T
	rand *rand.Rand  // the world's; the API has its own
	pods cache.Store // what the controller knows
	// calmed, if there is one, is called when the world becomes calm.
	calmed func()

	told    sync.Mutex // guards the two below; held for no other lock
	history []string
	sick    bool

	mu      sync.Mutex           // guards all below
	ready   map[types.UID]bool   // the pods that have ever been ready
	existed map[string]bool      // the names that pods have had
	owed    map[string]types.UID // places whose pod the controller took although it was available
}

func (l *life) note(format string, args ...any) {
	l.told.Lock()
	defer l.told.Unlock()
	l.history = append(l.history, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (l *life) wrong(format string, args ...any) {
	l.told.Lock()
	defer l.told.Unlock()
	if !l.sick {
		l.sick = true
		l.t.Errorf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), strings.Join(l.history, "\n"))
	}
}

// play runs a life: the world acts at random, then everything becomes calm, and has to come to rest.
func play(t *testing.T, seed uint64, build func(*life, informers.SharedInformerFactory) (controller.Controller, error), act, rest func(*life)) bool {
	t.Helper()
	l := &life{
		hostileAPI: newHostileAPI(seed), t: t, rand: rand.New(rand.NewPCG(seed, 1)),
		ready: map[types.UID]bool{}, existed: map[string]bool{}, owed: map[string]types.UID{},
	}
	f := informers.NewSharedInformerFactory(l.Clientset, 0)
	l.pods = f.Core().V1().Pods().Informer().GetStore()
	c, err := build(l, f)
	if err != nil {
		t.Fatal(err)
	}
	stop := begin(t, f, c)
	for range 60 {
		time.Sleep(time.Duration(l.rand.Int64N(int64(2 * time.Second))))
		act(l)
	}
	l.setCalm()
	if l.calmed != nil {
		l.calmed()
	}
	l.attendAll(200)
	l.ClearActions()
	l.attendAll(100)
	rest(l)
	for _, a := range l.Actions() {
		if a.GetVerb() != "watch" && a.GetVerb() != "list" {
			l.wrong("%s %s at rest: %+v", a.GetVerb(), a.GetResource().Resource, a)
		}
	}
	stop()
	if l.sick {
		t.Logf("seed %d", seed)
	}
	return !l.sick
}

// begin starts informers and a controller. The API fails all the time: what the controller says to that
// would bury what matters.
func begin(t *testing.T, f informers.SharedInformerFactory, c controller.Controller) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	f.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() {
		cancel()
		running.Wait()
		f.Shutdown()
	}
}

// attendAll attends to all pods once a second.
func (l *life) attendAll(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		for _, p := range l.all("pods") {
			l.attend(p.(*v1.Pod), true)
		}
	}
}

// attend is what a scheduler and a kubelet do about one pod: one step towards what it should be.
func (l *life) attend(p *v1.Pod, well bool) {
	key := p.Namespace + "/" + p.Name
	l.change("pods", key, func(o object) bool {
		p := o.(*v1.Pod)
		switch {
		case p.DeletionTimestamp != nil:
			l.note("%s %s is gone", p.Name, p.UID)
			return false
		case p.Spec.NodeName == "":
			p.Spec.NodeName = l.bind(p)
		case p.Status.Phase == v1.PodPending:
			p.Status.Phase = v1.PodRunning
		case p.Status.Phase == v1.PodRunning && !well:
			p.Status.Phase, p.Status.Conditions = v1.PodFailed, nil
			l.note("%s %s fails", p.Name, p.UID)
		case p.Status.Phase == v1.PodRunning && !isReady(p):
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			l.becameReady(p)
		}
		return true
	})
}

func (l *life) becameReady(p *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("%s %s is ready", p.Name, p.UID)
	l.ready[p.UID] = true
	delete(l.owed, place(p))
}

// place is what a pod and its replacement have in common: the name or, for a daemon, the node.
func place(p *v1.Pod) string {
	if p.Spec.Affinity == nil {
		return p.Name
	}
	return nodeFor(p)
}

func nodeFor(p *v1.Pod) string {
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// bind returns the node of a pod: there may be none (any more).
func (l *life) bind(p *v1.Pod) string {
	if p.Spec.Affinity == nil {
		return "n"
	}
	if _, ok := l.objects["nodes"]["/"+nodeFor(p)]; !ok {
		return ""
	}
	return nodeFor(p)
}

// took notes that the controller deletes a pod. Not more than so many places may have lost one that it
// knew to be available, and have no new one yet.
func (l *life) took(p *v1.Pod, most int) {
	l.note("%s %s is deleted", p.Name, p.UID)
	item, exists, err := l.pods.GetByKey(p.Namespace + "/" + p.Name)
	if err != nil {
		l.wrong("%v", err)
	}
	if !exists || item.(*v1.Pod).UID != p.UID || !isReady(item.(*v1.Pod)) {
		return
	}
	l.owed[place(p)] = p.UID
	if len(l.owed) > most {
		l.wrong("%d pods were taken that were available: %v", len(l.owed), l.owed)
	}
}

// template returns a template with an image, as the API server stores it.
func templateOf(image string) v1.PodTemplateSpec {
	t := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
	defaults.PodSpec(&t.Spec)
	return t
}

// any returns one of the pods, or nil.
func (l *life) any() *v1.Pod {
	all := l.all("pods")
	if len(all) == 0 {
		return nil
	}
	return all[l.rand.IntN(len(all))].(*v1.Pod)
}

// StatefulSets.

const setKey = "a/web"

func (l *life) set() *appsv1.StatefulSet { return l.all("statefulsets")[0].(*appsv1.StatefulSet) }

func (l *life) changeSet(f func(*appsv1.StatefulSet)) {
	l.change("statefulsets", setKey, func(o object) bool { f(o.(*appsv1.StatefulSet)); return true })
}

func newSet(r *rand.Rand) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(1 + r.IntN(5))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: templateOf("v0"), ServiceName: "svc",
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(intstr.FromInt32(int32(1 + r.IntN(3))))}},
		VolumeClaimTemplates: []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}},
		}}},
	}}
	s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
	if r.IntN(2) == 0 {
		s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	}
	if r.IntN(3) == 0 {
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 3}
	}
	defaults.StatefulSet(s)
	return s
}

// checkSet looks at each pod that the controller creates or deletes.
func (l *life) checkSet(kind string, old, obj metav1.Object) {
	if kind != "pods" || old != nil && obj != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.objects["statefulsets"][setKey].(*appsv1.StatefulSet)
	if old != nil {
		l.took(old.(*v1.Pod), set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue())
		return
	}
	p := obj.(*v1.Pod)
	l.note("%s %s is created, %s", p.Name, p.UID, p.Spec.Containers[0].Image)
	if l.objects["persistentvolumeclaims"]["a/data-"+p.Name] == nil {
		l.wrong("%s has no volume claim", p.Name)
	}
	l.existed[p.Name] = true
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		return
	}
	n, err := strconv.Atoi(strings.TrimPrefix(p.Name, "web-"))
	if err != nil {
		l.wrong("created %s", p.Name)
	}
	for i := startOf(set); i < n; i++ {
		before := "web-" + strconv.Itoa(i)
		other, exists := l.objects["pods"]["a/"+before]
		if !exists && !l.existed[before] {
			l.wrong("%s is created, and %s never was", p.Name, before)
		}
		if !exists {
			continue // somebody has just deleted it
		}
		if !l.ready[other.(*v1.Pod).UID] {
			l.wrong("%s is created before %s was ever ready", p.Name, before)
		}
	}
}

func startOf(s *appsv1.StatefulSet) int {
	if s.Spec.Ordinals == nil {
		return 0
	}
	return int(s.Spec.Ordinals.Start)
}

func (l *life) actOnSet(scales bool) {
	switch n := l.rand.IntN(20); {
	case n == 0:
		image := fmt.Sprint("v", l.rand.IntN(3))
		l.note("update to %s", image)
		l.changeSet(func(s *appsv1.StatefulSet) { s.Spec.Template = templateOf(image) })
	case n == 1 && scales:
		to := int32(l.rand.IntN(6))
		l.note("scale to %d", to)
		l.changeSet(func(s *appsv1.StatefulSet) { s.Spec.Replicas = &to })
	case n == 2 && scales:
		l.changeSet(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(l.rand.IntN(4)))
		})
	case n == 3 && scales:
		if p := l.any(); p != nil {
			l.note("somebody deletes %s", p.Name)
			l.change("pods", "a/"+p.Name, func(o object) bool { o.SetDeletionTimestamp(new(metav1.Now())); return true })
		}
	default:
		if p := l.any(); p != nil {
			l.attend(p, l.rand.IntN(15) > 0 || !isReady(p))
		}
	}
}

// setRests checks that the rollout has ended, and that the status tells of it.
func (l *life) setRests() {
	set := l.set()
	n := *set.Spec.Replicas
	all := l.all("pods")
	if len(all) != int(n) {
		l.wrong("%d pods, want %d", len(all), n)
	}
	fresh := int32(0)
	for i := range n {
		key := "a/web-" + strconv.Itoa(startOf(set)+int(i))
		k := slices.IndexFunc(all, func(o object) bool { return o.GetNamespace()+"/"+o.GetName() == key })
		switch {
		case k < 0:
			l.wrong("there is no %s", key)
		case !isReady(all[k].(*v1.Pod)):
			l.wrong("%s is not ready", key)
		case all[k].GetLabels()[appsv1.StatefulSetRevisionLabel] == set.Status.UpdateRevision:
			fresh++
		case i >= *set.Spec.UpdateStrategy.RollingUpdate.Partition:
			l.wrong("%s is of an old revision", key)
		}
	}
	st := set.Status
	if st.Replicas != n || st.ReadyReplicas != n || st.AvailableReplicas != n || st.UpdatedReplicas != fresh || st.ObservedGeneration != set.Generation ||
		fresh == n && st.CurrentRevision != st.UpdateRevision {
		l.wrong("status %+v of %d replicas", st, n)
	}
}

func lifetimes(t *testing.T) uint64 {
	t.Helper()
	if testing.Short() {
		return 20
	}
	return 150
}

// No pod comes before those that it has to wait for, an update never takes more than maxUnavailable, and
// each rollout ends.
func TestLivesOfStatefulSets(t *testing.T) {
	for seed := range lifetimes(t) {
		ok := false
		synctest.Test(t, func(t *testing.T) {
			ok = play(t, seed, func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
				l.add("statefulsets", newSet(l.rand))
				scales := seed%2 == 0
				l.onWrite = func(kind string, old, obj metav1.Object) {
					if old == nil || !scales {
						l.checkSet(kind, old, obj)
					}
				}
				return statefulset.New(l.Clientset, f)
			}, func(l *life) { l.actOnSet(seed%2 == 0) }, (*life).setRests)
		})
		if !ok {
			return
		}
	}
}

// DaemonSets.

func newDaemon(r *rand.Rand) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: templateOf("v0"),
	}}
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(int32(1 + r.IntN(3))))}
	if r.IntN(2) == 0 {
		ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
			MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(int32(1 + r.IntN(2)))),
		}
	}
	defaults.DaemonSet(ds)
	return ds
}

// checkDaemon looks at each pod that the controller creates or deletes.
func (l *life) checkDaemon(kind string, old, obj metav1.Object) {
	if kind != "pods" || old != nil && obj != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ds := l.objects["daemonsets"][setKey].(*appsv1.DaemonSet)
	surge := ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue()
	if old != nil {
		p := old.(*v1.Pod)
		if surge == 0 && len(l.objects["nodes"]) == nodesAtStart {
			l.took(p, ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue())
		}
		return
	}
	p := obj.(*v1.Pod)
	l.note("%s %s is created on %s, %s", p.Name, p.UID, nodeFor(p), p.Spec.Containers[0].Image)
	living := 0
	for _, o := range l.objects["pods"] {
		if other := o.(*v1.Pod); nodeFor(other) == nodeFor(p) && other.DeletionTimestamp == nil && other.Status.Phase != v1.PodFailed {
			living++
		}
	}
	most := 1
	if surge > 0 {
		most = 2
	}
	if living > most {
		l.wrong("%d pods on %s", living, nodeFor(p))
	}
}

const nodesAtStart = 5

func (l *life) actOnDaemon(nodes bool) {
	name := fmt.Sprint("n", l.rand.IntN(nodesAtStart))
	switch n := l.rand.IntN(20); {
	case n == 0:
		image := fmt.Sprint("v", l.rand.IntN(3))
		l.note("update to %s", image)
		l.change("daemonsets", setKey, func(o object) bool { o.(*appsv1.DaemonSet).Spec.Template = templateOf(image); return true })
	case n == 1 && nodes:
		taints := [][]v1.Taint{nil, {{Key: "k", Effect: v1.TaintEffectNoSchedule}}, {{Key: "k", Effect: v1.TaintEffectNoExecute}}}[l.rand.IntN(3)]
		l.note("taints of %s: %v", name, taints)
		l.change("nodes", "/"+name, func(o object) bool { o.(*v1.Node).Spec.Taints = taints; return true })
	case n == 2 && nodes:
		l.swapNode(name)
	default:
		if p := l.any(); p != nil {
			l.attend(p, l.rand.IntN(15) > 0 || !isReady(p))
		}
	}
}

// swapNode removes a node and what the garbage collector of pods would remove, or adds it.
func (l *life) swapNode(name string) {
	for _, n := range l.all("nodes") {
		if n.GetName() != name {
			continue
		}
		l.note("%s is removed", name)
		l.change("nodes", "/"+name, func(object) bool { return false })
		for _, p := range l.all("pods") {
			if p.(*v1.Pod).Spec.NodeName == name {
				l.change("pods", "a/"+p.GetName(), func(object) bool { return false })
			}
		}
		return
	}
	l.note("%s is added", name)
	l.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// daemonRests checks that each node that should have a pod has one, and that the status tells of it.
func (l *life) daemonRests() {
	ds := l.all("daemonsets")[0].(*appsv1.DaemonSet)
	on := map[string]int{}
	for _, o := range l.all("pods") {
		p := o.(*v1.Pod)
		on[nodeFor(p)]++
		if !isReady(p) || p.Spec.Containers[0].Image != ds.Spec.Template.Spec.Containers[0].Image {
			l.wrong("%s on %s: %s, ready %v", p.Name, nodeFor(p), p.Spec.Containers[0].Image, isReady(p))
		}
	}
	desired := int32(0)
	for _, o := range l.all("nodes") {
		n := o.(*v1.Node)
		repels := len(n.Spec.Taints) > 0
		if !repels {
			desired++
		}
		if stays := repels && n.Spec.Taints[0].Effect == v1.TaintEffectNoSchedule; on[n.Name] != 1 && !repels || on[n.Name] > 0 && repels && !stays {
			l.wrong("%d pods on %s with taints %v", on[n.Name], n.Name, n.Spec.Taints)
		}
		delete(on, n.Name)
	}
	if len(on) > 0 {
		l.wrong("pods on nodes that are gone: %v", on)
	}
	st := ds.Status
	if st.DesiredNumberScheduled != desired || st.NumberReady != desired || st.NumberAvailable != desired || st.UpdatedNumberScheduled != desired || st.NumberUnavailable != 0 {
		l.wrong("status %+v, want %d", st, desired)
	}
}

// No node has two pods without a reason, an update never takes more than maxUnavailable, and each
// rollout ends, whatever happens to nodes.
func TestLivesOfDaemonSets(t *testing.T) {
	for seed := range lifetimes(t) {
		ok := false
		synctest.Test(t, func(t *testing.T) {
			ok = play(t, seed, func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
				for i := range nodesAtStart {
					l.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
				}
				l.add("daemonsets", newDaemon(l.rand))
				nodes := seed%2 == 0
				l.onWrite = func(kind string, old, obj metav1.Object) {
					if old == nil || !nodes {
						l.checkDaemon(kind, old, obj)
					}
				}
				return daemonset.New(l.Clientset, f)
			}, func(l *life) { l.actOnDaemon(seed%2 == 0) }, (*life).daemonRests)
		})
		if !ok {
			return
		}
	}
}
