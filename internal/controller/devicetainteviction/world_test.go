package devicetainteviction

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// world is a cluster with the controller in it.
type world struct {
	t      *testing.T
	client *fake.Clientset
	stop   func()
}

func start(t *testing.T, objs ...runtime.Object) *world {
	t.Helper()
	w := &world{t: t, client: fake.NewClientset(objs...)}
	f := informers.NewSharedInformerFactory(w.client, 0)
	c, err := New(w.client, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	synctest.Wait()
	w.stop = func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return w
}

// after lets time pass.
func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pods returns the names of the pods that are left.
func (w *world) pods() string {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods("ns").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func (w *world) wantPods(want string) {
	w.t.Helper()
	if got := w.pods(); got != want {
		w.t.Errorf("pods %q, want %q", got, want)
	}
}

// events returns what was told of a pod.
func (w *world) events(pod string) string {
	w.t.Helper()
	list, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == pod {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(out, "; ")
}

// says returns a rule's condition.
func (w *world) says(rule string) string {
	w.t.Helper()
	r, err := w.client.ResourceV1().DeviceTaintRules().Get(w.t.Context(), rule, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	c := meta.FindStatusCondition(r.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason + ": " + c.Message
}

func (w *world) wantSays(rule, want string) {
	w.t.Helper()
	if got := w.says(rule); got != want {
		w.t.Errorf("the rule says\n%q, want\n%q", got, want)
	}
}

func (w *world) addRule(r *resourcev1.DeviceTaintRule) {
	w.t.Helper()
	if _, err := w.client.ResourceV1().DeviceTaintRules().Create(w.t.Context(), r, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// rule taints the device one.
func rule(name string, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	now := metav1.Now()
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new("gpu.example.com"), Device: new("one")},
			Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: effect, TimeAdded: &now},
		},
	}
}

// uses returns a pod that runs with a claim of its name for a device, and that claim.
func uses(name, device string, tolerations ...resourcev1.DeviceToleration) []runtime.Object {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	pod.Spec.NodeName, pod.Status.Phase = "node", v1.PodRunning
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
	return []runtime.Object{pod, claim(name, device, tolerations...)}
}

func claim(name, device string, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)}}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{
		{Request: "r", Driver: "gpu.example.com", Pool: "pool", Device: device, Tolerations: tolerations},
	}
	return c
}

func slice(name string, generation int64, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	s.Spec.Driver, s.Spec.Pool, s.Spec.Devices = "gpu.example.com", resourcev1.ResourcePool{Name: "pool", Generation: generation}, devices
	return s
}

func device(name string, taints ...resourcev1.DeviceTaint) resourcev1.Device {
	return resourcev1.Device{Name: name, Taints: taints}
}

func together(objs ...[]runtime.Object) (out []runtime.Object) {
	for _, o := range objs {
		out = append(out, o...)
	}
	return out
}

// TestARuleEvicts the pods whose devices it selects, says so, and nothing else happens.
func TestARuleEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := uses("waits", "one")
		waits[0].(*v1.Pod).Spec.NodeName = "" //nolint:forcetypeassert // a pod
		w := start(t, together(uses("a", "one"), uses("b", "two"), uses("c", "one"), waits,
			[]runtime.Object{slice("s", 1, device("one"), device("two"))})...)
		defer w.stop()
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.wantPods("b waits")
		if got, want := w.events("a"), "DeviceTaintManagerEviction: Marking for deletion"; got != want {
			t.Errorf("events: %q, want %q", got, want)
		}
		w.after(time.Minute)
		w.wantSays("r", "False Completed: 2 pods evicted since starting the controller.")
		w.wantPods("b waits")
	})
}

// TestARuleEvictsAllOfAGroup whose pods have the device in common, and none that only belongs to it.
func TestARuleEvictsAllOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for name, group := range map[string]string{"a": "g", "b": "g", "other": "h", "without": "g"} {
			pod := uses(name, "one")[0].(*v1.Pod) //nolint:forcetypeassert // a pod
			pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
			pod.Spec.ResourceClaims[0].ResourceClaimName = new("shared")
			if name == "without" {
				pod.Spec.ResourceClaims = nil
			}
			objs = append(objs, pod)
		}
		shared := claim("shared", "one")
		shared.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
			{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "uid-of-g"},
		}
		w := start(t, append(objs, shared)...)
		defer w.stop()
		w.addRule(rule("none", resourcev1.DeviceTaintEffectNone))
		w.after(time.Minute)
		if got := w.says("none"); !strings.Contains(got, "2 pods would be evicted in 1 namespace") {
			t.Errorf("the rule says %q", got)
		}
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.wantPods("other without")
		w.after(time.Minute)
		w.wantSays("r", "False Completed: 2 pods evicted since starting the controller.")
	})
}

// TestAPodIsMarked before it is deleted, so that others see why it went, and no other pod of its name is deleted.
func TestAPodIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, uses("a", "one")...)
		defer w.stop()
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.wantPods("")
		marked, deleted := false, false
		for _, a := range w.client.Actions() {
			switch a := a.(type) {
			case ktesting.PatchAction:
				if a.Matches("patch", "pods/status") {
					patch := string(a.GetPatch())
					marked = strings.Contains(patch, `"type":"DisruptionTarget"`) &&
						strings.Contains(patch, `"reason":"DeletionByDeviceTaintManager"`) && strings.Contains(patch, `"uid":"a"`)
				}
			case ktesting.DeleteAction:
				deleted = true
				if p := a.GetDeleteOptions().Preconditions; !marked || p == nil || p.UID == nil || *p.UID != "a" {
					t.Errorf("deleted with %+v, marked: %v", p, marked)
				}
			}
		}
		if !deleted {
			t.Error("nothing was deleted")
		}
	})
}

// TestAPodThatToleratesATaintForAWhile goes when that is over, unless the taint goes first.
func TestAPodThatToleratesATaintForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patient := resourcev1.DeviceToleration{
			Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute, TolerationSeconds: new(int64(60)),
		}
		w := start(t, uses("a", "one", patient)...)
		defer w.stop()
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.after(30 * time.Second)
		w.wantPods("a")
		w.wantSays("r", "True PodsPendingEviction: 1 pod needs to be evicted in 1 namespace.")
		if err := w.client.ResourceV1().DeviceTaintRules().Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.after(10 * time.Minute)
		w.wantPods("a")
		if got, want := w.events("a"), "DeviceTaintManagerEviction: Cancelling deletion"; got != want {
			t.Errorf("events: %q, want %q", got, want)
		}
		w.addRule(rule("again", resourcev1.DeviceTaintEffectNoExecute))
		w.after(59 * time.Second)
		w.wantPods("a")
		w.after(2 * time.Second)
		w.wantPods("")
	})
}

// TestADriverEvicts by a taint in its slice, of the last generation.
func TestADriverEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := metav1.Now()
		broken := resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &now}
		w := start(t, together(uses("a", "one"), uses("b", "two"), []runtime.Object{
			slice("old", 1, device("one", broken), device("two")), slice("new", 2, device("one")),
		})...)
		defer w.stop()
		w.after(time.Minute)
		w.wantPods("a b")
		s := slice("new", 2, device("one"), device("two", broken))
		if _, err := w.client.ResourceV1().ResourceSlices().Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.wantPods("a")
		if err := w.client.ResourceV1().ResourceSlices().Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.wantPods("") // the old one counts again
	})
}

// TestWhatARuleWouldDo is told once, and nothing is done.
func TestWhatARuleWouldDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, together(uses("a", "one"), uses("b", "one"), []runtime.Object{slice("s", 1, device("one"), device("two"))})...)
		defer w.stop()
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNone))
		want := "False NoEffect: 1 published device selected. 2 allocated devices selected. 2 pods would be evicted in 1 namespace if the " +
			"effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
		w.wantSays("r", want)
		if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.after(time.Minute)
		w.wantSays("r", want)
		w.wantPods("b")
		w.addRule(rule("s", resourcev1.DeviceTaintEffectNoSchedule))
		w.wantSays("s", "False OtherEffect: Eviction only happens for the NoExecute effect.")
		w.wantPods("b")
	})
}

// TestARuleThatIsGoneEvictsNobody although the informer still has it.
func TestARuleThatIsGoneEvictsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, uses("a", "one")...)
		defer w.stop()
		w.client.PrependReactor("get", "devicetaintrules", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, rule("r", resourcev1.DeviceTaintEffectNoSchedule), nil
		})
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.after(time.Minute)
		w.wantPods("a")
	})
}

// TestClaimsOfOthers evict no pod: a claim that is not reserved for it, and one that was made for an earlier pod of its
// name. One that was made for its extended resources does.
func TestClaimsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := uses("a", "one")
		a[1].(*resourcev1.ResourceClaim).Status.ReservedFor[0].UID = "earlier" //nolint:forcetypeassert // a claim
		b := uses("b", "one")
		pod, _ := b[0].(*v1.Pod)
		pod.Spec.ResourceClaims, pod.Status.ExtendedResourceClaimStatus = nil, &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "b"}
		its, _ := b[1].(*resourcev1.ResourceClaim)
		its.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "b", UID: "b", Controller: new(true)}}
		w := start(t, together(a, b)...)
		defer w.stop()
		w.addRule(rule("r", resourcev1.DeviceTaintEffectNoExecute))
		w.after(time.Minute)
		w.wantPods("a")
	})
}
