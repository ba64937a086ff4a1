package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/deployment"
	"wherry.dev/internal/controller/replicaset"
)

// cluster is a fake API server with the controllers of workloads. Unlike the fake alone, it gives
// objects versions, names and generations, and refuses updates of old versions.
type cluster struct {
	t *testing.T
	*fake.Clientset

	mu      sync.Mutex
	version int
	created int   // pods
	refuse  error // of creations of pods
}

func newCluster(t *testing.T, objs ...runtime.Object) (*cluster, func()) {
	t.Helper()
	return clusterOf(t, objs, func(c clientset.Interface, f informers.SharedInformerFactory) ([]controller.Controller, error) {
		sets, err1 := replicaset.New(c, f)
		rcs, err2 := replicaset.NewForReplicationControllers(c, f)
		deployments, err3 := deployment.New(c, f)
		return []controller.Controller{sets, rcs, deployments}, errors.Join(err1, err2, err3)
	})
}

// clusterOf returns a fake API server with the controllers that build makes.
func clusterOf(t *testing.T, objs []runtime.Object, build func(clientset.Interface, informers.SharedInformerFactory) ([]controller.Controller, error)) (*cluster, func()) {
	t.Helper()
	c := &cluster{t: t, Clientset: fake.NewClientset(objs...), version: 1000}
	c.PrependReactor("create", "*", c.create)
	c.PrependReactor("update", "*", c.update)
	c.PrependReactor("delete", "*", c.delete)
	f := informers.NewSharedInformerFactory(c.Clientset, 0)
	controllers, err := build(c.Clientset, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	var running sync.WaitGroup
	for _, run := range controllers {
		running.Go(func() {
			if err := run.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	return c, func() {
		cancel()
		running.Wait()
		f.Shutdown()
	}
}

func (c *cluster) create(action k8stesting.Action) (bool, runtime.Object, error) {
	obj := action.(k8stesting.CreateAction).GetObject().(metav1.Object)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := obj.(*v1.Pod); ok {
		if c.refuse != nil {
			return true, nil, c.refuse
		}
		c.created++
	}
	c.version++
	if obj.GetName() == "" {
		obj.SetName(obj.GetGenerateName() + strconv.Itoa(c.version))
	}
	obj.SetUID(types.UID(strconv.Itoa(c.version)))
	obj.SetResourceVersion(strconv.Itoa(c.version))
	obj.SetGeneration(1)
	obj.SetCreationTimestamp(metav1.Now())
	return false, nil, nil
}

func (c *cluster) update(action k8stesting.Action) (bool, runtime.Object, error) {
	obj := action.(k8stesting.UpdateAction).GetObject().(metav1.Object)
	c.mu.Lock()
	defer c.mu.Unlock()
	item, err := c.Tracker().Get(action.GetResource(), obj.GetNamespace(), obj.GetName())
	if err != nil {
		return true, nil, err
	}
	was := item.(metav1.Object)
	if v := obj.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), obj.GetName(), fmt.Errorf("version %s is not %s", v, was.GetResourceVersion()))
	}
	c.version++
	obj.SetResourceVersion(strconv.Itoa(c.version))
	if action.GetSubresource() == "" && !sameSpec(obj, was) {
		obj.SetGeneration(was.GetGeneration() + 1)
	}
	return false, nil, nil
}

// delete gives an object a new version before it goes: the event of its deletion bears it.
func (c *cluster) delete(action k8stesting.Action) (bool, runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	item, err := c.Tracker().Get(action.GetResource(), action.GetNamespace(), action.(k8stesting.DeleteAction).GetName())
	if err != nil {
		return true, nil, err
	}
	c.version++
	obj := item.DeepCopyObject()
	obj.(metav1.Object).SetResourceVersion(strconv.Itoa(c.version))
	return false, nil, c.Tracker().Update(action.GetResource(), obj, action.GetNamespace())
}

func sameSpec(a, b metav1.Object) bool {
	switch a := a.(type) {
	case *appsv1.ReplicaSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.ReplicaSet).Spec)
	case *appsv1.Deployment:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.Deployment).Spec)
	}
	return true
}

func (c *cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) pods() []v1.Pod {
	c.t.Helper()
	list, err := c.CoreV1().Pods("a").List(c.t.Context(), metav1.ListOptions{})
	c.check(err)
	return list.Items
}

// images returns how many pods of each image there are, and how many are ready.
func (c *cluster) images() string {
	c.t.Helper()
	count := map[string][2]int{}
	for _, p := range c.pods() {
		n := count[p.Spec.Containers[0].Image]
		n[0]++
		if isReady(&p) {
			n[1]++
		}
		count[p.Spec.Containers[0].Image] = n
	}
	return fmt.Sprint(count)
}

func isReady(p *v1.Pod) bool {
	return len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == v1.ConditionTrue
}

// start makes up to n pods of an image ready, as a kubelet would, and returns how many.
func (c *cluster) start(n int, image string) (started int) {
	c.t.Helper()
	for _, p := range c.pods() {
		if started == n || isReady(&p) || p.Spec.Containers[0].Image != image {
			continue
		}
		p.Status.Phase = v1.PodRunning
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		_, err := c.CoreV1().Pods("a").UpdateStatus(c.t.Context(), &p, metav1.UpdateOptions{})
		c.check(err)
		started++
	}
	synctest.Wait()
	return started
}

// change updates the Deployment.
func (c *cluster) change(f func(*appsv1.Deployment)) {
	c.t.Helper()
	d := c.deployment()
	f(d)
	_, err := c.AppsV1().Deployments("a").Update(c.t.Context(), d, metav1.UpdateOptions{})
	c.check(err)
	synctest.Wait()
}

func (c *cluster) deployment() *appsv1.Deployment {
	c.t.Helper()
	d, err := c.AppsV1().Deployments("a").Get(c.t.Context(), "web", metav1.GetOptions{})
	c.check(err)
	return d
}

// want checks pods by image, and the reason of the Deployment's condition Progressing.
func (c *cluster) want(images, progress string) {
	c.t.Helper()
	reason := ""
	for _, cond := range c.deployment().Status.Conditions {
		if cond.Type == appsv1.DeploymentProgressing {
			reason = cond.Reason
		}
	}
	if got := c.images(); got != images || reason != progress {
		c.t.Errorf("pods %s, progress %s; want %s, %s", got, reason, images, progress)
	}
}

// comesToRest checks that nobody asks anything any more while nothing happens.
func (c *cluster) comesToRest() {
	c.t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	c.ClearActions()
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	if got := c.Actions(); len(got) > 0 {
		c.t.Errorf("%d requests in a day in which nothing happened, such as %v", len(got), got[0])
	}
}

func labels() map[string]string { return map[string]string{"app": "web"} }

func podTemplate() v1.PodTemplateSpec {
	return v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels()}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "v1"}}}}
}

func (c *cluster) deploy(replicas int32, changes ...func(*appsv1.Deployment)) {
	c.t.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels()}, Template: podTemplate(), ProgressDeadlineSeconds: new(int32(600)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{}},
		},
	}
	for _, f := range changes {
		f(d)
	}
	_, err := c.AppsV1().Deployments("a").Create(c.t.Context(), d, metav1.CreateOptions{})
	c.check(err)
	synctest.Wait()
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

func replicas(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

func (c *cluster) reasons() (out []string) {
	c.t.Helper()
	list, err := c.CoreV1().Events("a").List(c.t.Context(), metav1.ListOptions{})
	c.check(err)
	for _, e := range list.Items {
		out = append(out, e.InvolvedObject.Kind+" "+e.Type+" "+e.Reason+": "+e.Message)
	}
	return out
}

func TestRollingUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.deploy(20)
		c.want("map[v1:[20 0]]", "ReplicaSetUpdated")
		if c.start(20, "v1") != 20 || c.created != 20 {
			t.Errorf("%d pods were created", c.created)
		}
		c.want("map[v1:[20 20]]", "NewReplicaSetAvailable")
		c.change(image("v2")) // with neither surge nor unavailability: one at a time
		for range 20 {
			if pods := c.pods(); len(pods) > 20 {
				t.Fatalf("%d pods", len(pods))
			}
			if c.start(1, "v2") != 1 {
				t.Fatalf("the rollout hangs: %s", c.images())
			}
		}
		c.want("map[v2:[20 20]]", "NewReplicaSetAvailable")
		if d := c.deployment(); d.Annotations["deployment.kubernetes.io/revision"] != "2" || d.Status.UpdatedReplicas != 20 || c.created != 40 {
			t.Errorf("%v %+v, %d pods were created", d.Annotations, d.Status, c.created)
		}
		c.comesToRest()
		c.change(func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "0"}
		})
		if got := c.deployment(); got.Spec.Template.Spec.Containers[0].Image != "v1" || got.Annotations[appsv1.DeprecatedRollbackTo] != "" {
			t.Errorf("not rolled back: %+v", got)
		}
		for c.start(1, "v1") > 0 {
			continue
		}
		c.want("map[v1:[20 20]]", "NewReplicaSetAvailable")
		if rev := c.deployment().Annotations["deployment.kubernetes.io/revision"]; rev != "3" {
			t.Errorf("revision %s", rev)
		}
		if !slices.Contains(c.reasons(), `Deployment Normal DeploymentRollback: Rolled back deployment "web" to revision 1`) {
			t.Errorf("events: %q", c.reasons())
		}
	})
}

func TestDeploymentIsScaledPausedAndResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.deploy(3)
		c.start(9, "v1")
		c.change(replicas(5))
		c.start(9, "v1")
		c.want("map[v1:[5 5]]", "NewReplicaSetAvailable")
		c.change(replicas(2))
		c.want("map[v1:[2 2]]", "NewReplicaSetAvailable")
		c.change(func(d *appsv1.Deployment) { d.Spec.Paused = true; image("v2")(d) })
		c.want("map[v1:[2 2]]", "DeploymentPaused")
		c.change(replicas(4))
		c.start(9, "v1")
		c.want("map[v1:[4 4]]", "DeploymentPaused")
		c.change(func(d *appsv1.Deployment) { d.Spec.Paused = false })
		c.want("map[v1:[3 3] v2:[1 0]]", "ReplicaSetUpdated")
		for range 4 {
			c.start(1, "v2")
		}
		c.want("map[v2:[4 4]]", "NewReplicaSetAvailable")
	})
}

func TestRecreateWaitsForTheEndOfOldPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.deploy(2, func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		})
		c.start(9, "v1")
		lasting := make([]v1.Pod, 2)
		copy(lasting, c.pods())
		// A kubelet takes its time: the pods get a deletion timestamp, and stay.
		c.PrependReactor("delete", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
			name := action.(k8stesting.DeleteAction).GetName()
			obj, err := c.Tracker().Get(action.GetResource(), "a", name)
			if err != nil {
				return true, nil, err
			}
			p := obj.(*v1.Pod).DeepCopy()
			if p.DeletionTimestamp != nil {
				return false, nil, nil
			}
			p.DeletionTimestamp = new(metav1.Now())
			c.mu.Lock()
			c.version++
			p.ResourceVersion = strconv.Itoa(c.version)
			c.mu.Unlock()
			return true, nil, c.Tracker().Update(action.GetResource(), p, "a")
		})
		c.change(image("v2"))
		c.want("map[v1:[2 2]]", "NewReplicaSetAvailable") // which upstream says, too, until there is a new set
		if n := c.deployment().Status.TerminatingReplicas; n == nil || *n != 2 {
			t.Errorf("terminating: %v", n)
		}
		for i, p := range lasting {
			if len(c.pods()) != 2-i {
				t.Errorf("%d pods", len(c.pods()))
			}
			c.check(c.CoreV1().Pods("a").Delete(t.Context(), p.Name, metav1.DeleteOptions{}))
			synctest.Wait()
		}
		c.want("map[v2:[2 0]]", "ReplicaSetUpdated")
		c.start(2, "v2")
		c.want("map[v2:[2 2]]", "NewReplicaSetAvailable")
	})
}

func TestProgressDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.deploy(2)
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		c.want("map[v1:[2 0]]", "ReplicaSetUpdated")
		c.start(1, "v1")
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		c.want("map[v1:[2 1]]", "ReplicaSetUpdated")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c.want("map[v1:[2 1]]", "ProgressDeadlineExceeded")
		c.start(1, "v1")
		c.want("map[v1:[2 2]]", "NewReplicaSetAvailable")
	})
}

func TestHashCollision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.deploy(1)
		sets, err := c.AppsV1().ReplicaSets("a").List(t.Context(), metav1.ListOptions{})
		c.check(err)
		name := sets.Items[0].Name
		c.check(c.AppsV1().Deployments("a").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		c.deploy(1) // the set of the first one has the name that its own would get
		d := c.deployment()
		if d.Status.CollisionCount == nil || *d.Status.CollisionCount != 1 || d.Status.ObservedGeneration != 1 {
			t.Errorf("%+v", d.Status)
		}
		sets, err = c.AppsV1().ReplicaSets("a").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(sets.Items) != 2 || sets.Items[0].Name == name && sets.Items[1].Name == name {
			t.Errorf("%d replica sets, %v", len(sets.Items), err)
		}
	})
}

func TestReplicaSetAdoptsReleasesAndReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "orphan", UID: "orphan", ResourceVersion: "7", Labels: labels()}, Spec: podTemplate().Spec}
		c, stop := newCluster(t, orphan)
		defer stop()
		_, err := c.AppsV1().ReplicaSets("a").Create(t.Context(), &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels()}, Template: podTemplate(), MinReadySeconds: 10},
		}, metav1.CreateOptions{})
		c.check(err)
		synctest.Wait()
		got, err := c.CoreV1().Pods("a").Get(t.Context(), "orphan", metav1.GetOptions{})
		c.check(err)
		if ref := metav1.GetControllerOf(got); ref == nil || ref.Name != "web" || len(c.pods()) != 2 {
			t.Fatalf("reference %v, %d pods", ref, len(c.pods()))
		}
		got.Labels["app"] = "other"
		_, err = c.CoreV1().Pods("a").Update(t.Context(), got, metav1.UpdateOptions{})
		c.check(err)
		synctest.Wait()
		got, err = c.CoreV1().Pods("a").Get(t.Context(), "orphan", metav1.GetOptions{})
		c.check(err)
		if len(got.OwnerReferences) != 0 || len(c.pods()) != 3 || c.created != 2 {
			t.Errorf("references %v, %d pods, %d created", got.OwnerReferences, len(c.pods()), c.created)
		}
		status := func() appsv1.ReplicaSetStatus {
			synctest.Wait()
			rs, err := c.AppsV1().ReplicaSets("a").Get(t.Context(), "web", metav1.GetOptions{})
			c.check(err)
			return rs.Status
		}
		c.start(9, "v1")
		time.Sleep(9 * time.Second)
		if st := status(); st.Replicas != 2 || st.ReadyReplicas != 2 || st.AvailableReplicas != 0 {
			t.Errorf("after 9 s: %+v", st)
		}
		time.Sleep(2 * time.Second)
		if st := status(); st.AvailableReplicas != 2 || st.ObservedGeneration != 1 {
			t.Errorf("after 11 s: %+v", st)
		}
	})
}

func TestFailedCreationIsToldAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		c.refuse = apierrors.NewForbidden(v1.Resource("pods"), "", fmt.Errorf("exceeded quota: q"))
		c.deploy(3)
		if !slices.Contains(c.reasons(), "ReplicaSet Warning FailedCreate: Error creating: "+c.refuse.Error()) {
			t.Errorf("events: %q", c.reasons())
		}
		failed := func() string {
			for _, cond := range c.deployment().Status.Conditions {
				if cond.Type == appsv1.DeploymentReplicaFailure {
					return string(cond.Status) + " " + cond.Reason + ": " + cond.Message
				}
			}
			return ""
		}
		if got := failed(); got != "True FailedCreate: "+c.refuse.Error() {
			t.Errorf("condition: %s", got)
		}
		c.mu.Lock()
		c.refuse = nil
		c.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := failed(); got != "" || c.images() != "map[v1:[3 0]]" {
			t.Errorf("condition %q, pods %s", got, c.images())
		}
	})
}

func TestReplicationController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t)
		defer stop()
		template := podTemplate()
		_, err := c.CoreV1().ReplicationControllers("a").Create(t.Context(), &v1.ReplicationController{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "old"},
			Spec:       v1.ReplicationControllerSpec{Replicas: new(int32(2)), Selector: labels(), Template: &template},
		}, metav1.CreateOptions{})
		c.check(err)
		synctest.Wait()
		c.start(1, "v1")
		rc, err := c.CoreV1().ReplicationControllers("a").Get(t.Context(), "old", metav1.GetOptions{})
		c.check(err)
		if st := rc.Status; st.Replicas != 2 || st.ReadyReplicas != 1 || st.FullyLabeledReplicas != 2 || c.images() != "map[v1:[2 1]]" {
			t.Errorf("%+v, %s", st, c.images())
		}
		if ref := metav1.GetControllerOf(&c.pods()[0]); ref.APIVersion != "v1" || ref.Kind != "ReplicationController" {
			t.Errorf("%+v", ref)
		}
	})
}
