package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"wherry.dev/test/fakeapi"
)

// world is a fake API server with true versions, and the controller.
type world struct {
	*fake.Clientset
	t *testing.T
}

// start runs the controller over some objects until the test ends. refuse may refuse its writes; it may be nil.
func start(t *testing.T, refuse func(ktesting.UpdateAction) error, objs ...runtime.Object) *world {
	t.Helper()
	w := &world{fakeapi.New(objs...), t}
	for _, kind := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		w.PrependReactor("update", kind, func(a ktesting.Action) (bool, runtime.Object, error) {
			if u, ok := a.(ktesting.UpdateAction); ok && refuse != nil {
				if err := refuse(u); err != nil {
					return true, nil, err
				}
			}
			return false, nil, nil
		})
	}
	f := informers.NewSharedInformerFactory(w, 0)
	c, err := New(w, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w.settle()
	return w
}

// settle waits until nothing more happens.
func (w *world) settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (w *world) claim(name string) *v1.PersistentVolumeClaim {
	w.t.Helper()
	c, err := w.CoreV1().PersistentVolumeClaims("ns").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) volume(name string) *v1.PersistentVolume {
	w.t.Helper()
	pv, err := w.CoreV1().PersistentVolumes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pv
}

// told returns the reasons of the events about an object, in order, each as often as it was told.
func (w *world) told(name string) string {
	w.t.Helper()
	list, err := w.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		if e := &list.Items[i]; e.InvolvedObject.Name == name {
			out = append(out, strings.Repeat(e.Reason+" ", int(e.Count)))
		}
	}
	return strings.TrimSpace(strings.Join(out, ""))
}

// writes counts the updates that there were since the last count.
func (w *world) writes() (n int) {
	for _, a := range w.Actions() {
		if a.GetVerb() == "update" {
			n++
		}
	}
	w.ClearActions()
	return n
}

func (w *world) add(obj runtime.Object) {
	w.t.Helper()
	if err := w.Tracker().Add(obj); err != nil {
		w.t.Fatal(err)
	}
}

// TestAThousandClaimsAndOneVolume costs no more than binding one of them.
func TestAThousandClaimsAndOneVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for i := range 1000 {
			objs = append(objs, newClaim(fmt.Sprint("c", i)))
		}
		w := start(t, nil, objs...)
		if n := w.writes(); n != 0 {
			t.Errorf("%d writes for claims that stay pending", n)
		}
		w.add(newVolume("v", is(v1.VolumePending)))
		w.settle()
		// Available; then claimRef and phase of the volume, volumeName and status of the claim. The loop of volumes may
		// try the same phase at the same moment, and be refused.
		if n := w.writes(); n < 5 || n > 10 {
			t.Errorf("%d writes for one binding", n)
		}
		pv := w.volume("v")
		if c := w.claim(pv.Spec.ClaimRef.Name); c.Status.Phase != v1.ClaimBound || c.Spec.VolumeName != "v" {
			t.Errorf("claim: %+v", c)
		}
		if pv.Spec.ClaimRef.Name == "c7" {
			return
		}
		if got := w.told("c7"); got != "FailedBinding" {
			t.Errorf("a claim that goes on waiting is told %q", got)
		}
	})
}

// TestWhatAClaimWaitsForIsToldOnce whenever it becomes another thing.
func TestWhatAClaimWaitsForIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil, newClaim("c", ofNamedClass("late")))
		w.add(newClass("late", driver, waits))
		w.settle()
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		}}}
		w.add(pod)
		for i := range 5 { // which do not matter
			w.add(newVolume(fmt.Sprint("v", i), inClass("late")))
		}
		w.settle()
		if err := w.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if got := w.told("c"); got != "ProvisioningFailed WaitForFirstConsumer WaitForFirstConsumer WaitForPodScheduled" {
			t.Errorf("told %q", got)
		}
	})
}

// TestAClaimThatIsRefusedDoesNotKeepOthersWaiting, neither while it is there, nor when it goes.
func TestAClaimThatIsRefusedDoesNotKeepOthersWaiting(t *testing.T) {
	for name, err := range map[string]error{"forbidden": errors.New("the webhook says so"), "conflict": apierrors.NewConflict(v1.Resource("persistentvolumes"), "v", errors.New("so it says"))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, func(u ktesting.UpdateAction) error {
					if pv, ok := u.GetObject().(*v1.PersistentVolume); ok && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Name == "bad" {
						return err
					}
					return nil
				}, newClaim("bad"), newVolume("v"))
				if n := w.writes(); n < 3 || n > 50 {
					t.Errorf("%d tries in a minute", n)
				}
				w.add(newClaim("good"))
				w.settle()
				if name == "conflict" {
					if err := w.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "bad", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				w.settle()
				if c := w.claim("good"); c.Status.Phase != v1.ClaimBound {
					t.Errorf("claim: %+v", c)
				}
			})
		})
	}
}

// TestAVolumeIsNotFreeWhileItsClaimIsThere: somebody removes the claim from the volume, and others want it.
func TestAVolumeIsNotFreeWhileItsClaimIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil, newClaim("c"), newVolume("v"))
		w.add(newClaim("d", naming))
		w.add(newClaim("e"))
		w.settle()
		pv := w.volume("v")
		pv.Spec.ClaimRef = nil
		if _, err := w.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if pv := w.volume("v"); pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Name != "c" || pv.Status.Phase != v1.VolumeBound {
			t.Errorf("volume: %+v", pv)
		}
		if got := w.told("d"); got != "FailedBinding" {
			t.Errorf("another claim that names it is told %q", got)
		}
		// When the claim goes, the volume is not for others either, before an administrator says so.
		if err := w.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		pv = w.volume("v")
		if pv.Status.Phase != v1.VolumeReleased || w.claim("d").Status.Phase != v1.ClaimPending {
			t.Errorf("volume: %+v, claim %+v", pv, w.claim("d"))
		}
		pv.Spec.ClaimRef = nil
		if _, err := w.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if pv := w.volume("v"); pv.Spec.ClaimRef == nil || pv.Status.Phase != v1.VolumeBound || w.claim(pv.Spec.ClaimRef.Name).Spec.VolumeName != "v" {
			t.Errorf("volume: %+v", pv)
		}
	})
}

// TestAVolumeForAClaimOfAnotherNamespace is for nobody here.
func TestAVolumeForAClaimOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "other" }
		w := start(t, nil, newClaim("c"), newClaim("d", naming), newVolume("v", keptFor("c", ""), elsewhere), newVolume("w", keptFor("c", "c"), elsewhere))
		if pv := w.volume("v"); pv.Spec.ClaimRef.UID != "" || pv.Status.Phase != v1.VolumeAvailable {
			t.Errorf("kept for a name: %+v", pv)
		}
		if pv := w.volume("w"); pv.Status.Phase != v1.VolumeReleased {
			t.Errorf("kept for a claim that is not in that namespace: %+v", pv)
		}
		if w.claim("c").Spec.VolumeName != "" || w.told("d") != "FailedBinding" {
			t.Errorf("claim: %+v; %s", w.claim("c"), w.told("d"))
		}
	})
}

// TestAVolumeWaitsForThePodsOfItsClaim before it fails to be recycled.
func TestAVolumeWaitsForThePodsOfItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		}}}
		w := start(t, nil, pod, newVolume("v", isOf("c"), policy(v1.PersistentVolumeReclaimRecycle)))
		if pv := w.volume("v"); pv.Status.Phase != v1.VolumeReleased {
			t.Errorf("volume: %+v", pv.Status)
		}
		if err := w.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if pv := w.volume("v"); pv.Status.Phase != v1.VolumeFailed || pv.Status.Message != "No recycler plugin found for the volume!" {
			t.Errorf("volume: %+v", pv.Status)
		}
	})
}
