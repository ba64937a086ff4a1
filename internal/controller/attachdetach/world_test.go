package attachdetach

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/controller"
)

// world is a fake API server, and the controller.
type world struct {
	*fake.Clientset
	t *testing.T
	c *Controller
}

// start runs the controller over some objects until the test ends, in a bubble of synctest.
func start(t *testing.T, objs ...runtime.Object) *world {
	t.Helper()
	w := &world{Clientset: fake.NewClientset(objs...), t: t}
	w.PrependReactor("create", "volumeattachments", func(a ktesting.Action) (bool, runtime.Object, error) {
		if create, ok := a.(ktesting.CreateAction); ok {
			create.GetObject().(metav1.Object).SetCreationTimestamp(metav1.Now())
		}
		return false, nil, nil
	})
	f := informers.NewSharedInformerFactory(w, 0)
	c, err := New(w, f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.c = c
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

func (w *world) settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// attachment returns the one of a node, nil if there is none.
func (w *world) attachment(node string) *storagev1.VolumeAttachment {
	w.t.Helper()
	a, err := controller.Found(w.StorageV1().VolumeAttachments().Get(w.t.Context(), attachments.Name(driver, handle, node), metav1.GetOptions{}))
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// answers writes what the attacher says of the attachment of a node.
func (w *world) answers(node string, with func(*storagev1.VolumeAttachment)) {
	w.t.Helper()
	a := w.attachment(node)
	if a == nil {
		w.t.Fatalf("there is no attachment for %s", node)
	}
	with(a)
	if _, err := w.StorageV1().VolumeAttachments().Update(w.t.Context(), a, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// node returns node a.
func (w *world) node() *v1.Node {
	w.t.Helper()
	n, err := w.CoreV1().Nodes().Get(w.t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// changeNode changes node a.
func (w *world) changeNode(f func(*v1.Node)) {
	w.t.Helper()
	n := w.node()
	f(n)
	if _, err := w.CoreV1().Nodes().Update(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func (w *world) add(obj runtime.Object) {
	w.t.Helper()
	if err := w.Tracker().Add(obj); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	if err := w.CoreV1().Pods("ns").Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// told returns the reasons of the events about a pod, in order, each as often as it was told.
func (w *world) told(pod string) string {
	w.t.Helper()
	list, err := w.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		if e := &list.Items[i]; e.InvolvedObject.Name == pod {
			out = append(out, strings.Repeat(e.Reason+" ", int(e.Count)))
		}
	}
	return strings.TrimSpace(strings.Join(out, ""))
}

// TestTheWayOfAVolume from one node to another: what each pod is told, what each node is told, and in which order.
func TestTheWayOfAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a"), newNode("b"), newPod("p", "a"))
		if a := w.attachment("a"); a == nil || a.Spec.Attacher != driver || a.Spec.NodeName != "a" || *a.Spec.Source.PersistentVolumeName != "pv" {
			t.Fatalf("attachment: %+v", a)
		}
		if n := w.node(); len(n.Status.VolumesAttached) > 0 {
			t.Errorf("reported before it is attached: %v", n.Status.VolumesAttached)
		}
		w.answers("a", failing)
		w.answers("a", isAttached)
		if n := w.node(); !reports(n, name) {
			t.Errorf("not reported: %v", n.Status.VolumesAttached)
		}
		w.changeNode(using)
		w.add(newPod("q", "b", later))
		for range 3 { // which do not matter
			w.changeNode(func(n *v1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() })
		}
		w.deletePod("p")
		if n := w.node(); !reports(n, name) || w.attachment("b") != nil {
			t.Errorf("detached while it is in use")
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = nil })
		if n := w.node(); reports(n, name) || w.attachment("a") != nil || w.attachment("b") == nil {
			t.Errorf("a: %v %v, b: %v", n.Status.VolumesAttached, w.attachment("a"), w.attachment("b"))
		}
		w.answers("b", isAttached)
		if n := len(w.c.memories.byVolume); n != 0 {
			t.Errorf("%d volumes are remembered, of which there is nothing to know", n)
		}
		if got := w.told("p"); got != "FailedAttachVolume SuccessfulAttachVolume" {
			t.Errorf("the first pod is told %q", got)
		}
		if got := w.told("q"); got != "FailedAttachVolume SuccessfulAttachVolume" {
			t.Errorf("the second pod is told %q", got)
		}
	})
}

// TestASilentAttacher is complained about every two minutes, and not with every change of the pod.
func TestASilentAttacher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a"), newPod("p", "a"), newAttachment("a", func(a *storagev1.VolumeAttachment) { a.CreationTimestamp = metav1.Now() }))
		time.Sleep(7 * time.Minute)
		w.changeNode(using)
		if got := w.told("p"); got != "FailedAttachVolume FailedAttachVolume FailedAttachVolume" {
			t.Errorf("told %q", got)
		}
	})
}

// TestARefusedAttachment is told once, and retried until it is taken.
func TestARefusedAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := true
		w := start(t, newVolume(), newClaim(), newNode("a"))
		w.PrependReactor("create", "volumeattachments", func(ktesting.Action) (bool, runtime.Object, error) {
			return refuse, nil, apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "x", errors.New("the webhook says so"))
		})
		w.add(newPod("p", "a"))
		if got := w.told("p"); got != "FailedAttachVolume" {
			t.Errorf("told %q", got)
		}
		refuse = false
		time.Sleep(time.Minute)
		if w.attachment("a") == nil {
			t.Error("it is not asked for again")
		}
	})
}

// TestWhatAPodWaitsForWakesIt in whatever order it comes.
func TestWhatAPodWaitsForWakesIt(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			objs := []runtime.Object{newVolume(), newClaim(), newNode("a"), newPod("p", "a")}
			for _, i := range order {
				w.add(objs[i])
			}
			if w.attachment("a") == nil {
				t.Errorf("in the order %v, it is not attached", order)
			}
		})
	}
}

// TestADriverThatDoesNotAttach has nothing attached, from when it says so, but for what is in use.
func TestADriverThatDoesNotAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a"), newPod("p", "a"))
		w.answers("a", isAttached)
		w.changeNode(using)
		w.add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}})
		if w.attachment("a") == nil {
			t.Error("detached while it is in use")
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = nil })
		if w.attachment("a") != nil {
			t.Error("still attached")
		}
		if err := w.StorageV1().CSIDrivers().Delete(t.Context(), driver, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.attachment("a") == nil {
			t.Error("not attached again")
		}
	})
}

// TestAnAttachmentWhoseVolumeIsGone is deleted when its node does not use it any more; those of others stay.
func TestAnAttachmentWhoseVolumeIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stranger := newAttachment("a", isAttached, func(a *storagev1.VolumeAttachment) { a.Name = "theirs" })
		w := start(t, newVolume(), newClaim(), newNode("a", using), newPod("p", "a"), newAttachment("a", isAttached), stranger)
		if err := w.CoreV1().PersistentVolumes().Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.attachment("a") == nil {
			t.Error("deleted while it is in use")
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil })
		if w.attachment("a") != nil {
			t.Error("left behind")
		}
		if _, err := w.StorageV1().VolumeAttachments().Get(t.Context(), "theirs", metav1.GetOptions{}); err != nil {
			t.Errorf("somebody else's: %v", err)
		}
	})
}

// TestAVolumeThatGoesBeforeItIsAttached leaves nothing, even if the controller did not make the attachment itself.
func TestAVolumeThatGoesBeforeItIsAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a"), newPod("p", "a"), newAttachment("a"))
		if err := w.CoreV1().PersistentVolumes().Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.attachment("a") != nil {
			t.Error("left behind")
		}
	})
}

// TestANodeThatComesBackEmpty loses what nobody needs there at once.
func TestANodeThatComesBackEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newAttachment("a", isAttached))
		if w.attachment("a") == nil {
			t.Fatal("detached, and nobody knows what the node uses")
		}
		w.add(newNode("a", made))
		if w.attachment("a") == nil {
			t.Error("detached, and the kubelet has not said yet what it uses")
		}
		w.changeNode(func(n *v1.Node) { n.Status.Conditions = newNode("a").Status.Conditions })
		if w.attachment("a") != nil {
			t.Error("still attached")
		}
	})
}

// TestAKubeletThatWasFaster says that a volume is in use when the informer does not know yet.
func TestAKubeletThatWasFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a", reporting), newPod("p", "a"), newAttachment("a", isAttached))
		stale := true
		w.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			return stale, newNode("a", using), nil
		})
		w.deletePod("p")
		if w.attachment("a") == nil {
			t.Error("detached while it is in use")
		}
		stale = false
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{"kubernetes.io/csi/other^1"} })
		w.changeNode(using)
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = nil })
		if w.attachment("a") != nil {
			t.Error("still attached")
		}
	})
}

// TestAVolumeWithTwoNames is one volume all the same, for the claims of both.
func TestAVolumeWithTwoNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second, claim := newVolume(), newClaim()
		second.Name, second.UID, second.Spec.ClaimRef = "second", "second", &v1.ObjectReference{Namespace: "ns", Name: "d", UID: "d"}
		claim.Name, claim.UID, claim.Spec.VolumeName = "d", "d", "second"
		other := newPod("q", "b", later)
		other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "d"
		w := start(t, newVolume(), newClaim(), second, claim, newNode("a"), newNode("b"), newPod("p", "a"), other)
		w.answers("a", isAttached)
		if w.attachment("b") != nil || w.told("q") != "FailedAttachVolume" {
			t.Errorf("attached to two nodes: %v, told %s", w.attachment("b"), w.told("q"))
		}
		w.deletePod("p")
		if a := w.attachment("b"); a == nil || *a.Spec.Source.PersistentVolumeName != "second" {
			t.Errorf("attachment: %+v", a)
		}
	})
}

// TestANodeThatDies keeps its volume for six minutes, and loses it then.
func TestANodeThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a", reporting, using), newNode("b"), newPod("p", "a"), newAttachment("a", isAttached))
		w.changeNode(silent)
		w.deletePod("p")
		w.add(newPod("q", "b"))
		time.Sleep(5 * time.Minute)
		if w.attachment("a") == nil || w.attachment("b") != nil {
			t.Error("detached too early")
		}
		time.Sleep(time.Minute)
		w.settle()
		if w.attachment("a") != nil || reports(w.node(), name) || w.attachment("b") == nil {
			t.Errorf("a: %v, b: %v", w.attachment("a"), w.attachment("b"))
		}
	})
}

// disk is the volume pv as a disk of an iSCSI target.
func disk(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "t", IQN: "iqn.2001-04.com.example:d"}}
}

const diskName = v1.UniqueVolumeName("kubernetes.io/iscsi/t:iqn.2001-04.com.example:d:0")

// TestTheWayOfADisk is the way of a volume for one that nodes attach themselves.
func TestTheWayOfADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(disk), newClaim(), newNode("a"), newNode("b"), newPod("p", "a"))
		if n := w.node(); !reports(n, diskName) {
			t.Fatalf("not reported: %v", n.Status.VolumesAttached)
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{diskName} })
		w.add(newPod("q", "b", later))
		w.deletePod("p")
		other := func() *v1.Node {
			n, err := w.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if !reports(w.node(), diskName) || reports(other(), diskName) {
			t.Error("given to another node while it is in use")
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = nil })
		if reports(w.node(), diskName) || !reports(other(), diskName) {
			t.Errorf("a: %v, b: %v", w.node().Status.VolumesAttached, other().Status.VolumesAttached)
		}
		if got := w.told("p"); got != "SuccessfulAttachVolume" {
			t.Errorf("the first pod is told %q", got)
		}
		if got := w.told("q"); got != "FailedAttachVolume SuccessfulAttachVolume" {
			t.Errorf("the second pod is told %q", got)
		}
		list, err := w.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("attachments: %v, %v", list.Items, err)
		}
		if n := len(w.c.memories.byVolume); n > 1 { // that b has it, in case b should be deleted
			t.Errorf("%d volumes are remembered", n)
		}
	})
}

// TestANodeThatIsMadeAnew may still have a disk, although nobody has told its new Node so.
func TestANodeThatIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(disk), newClaim(), newNode("a"), newNode("b"), newPod("p", "a"))
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{diskName} })
		if err := w.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.deletePod("p")
		w.add(newNode("a", made, func(n *v1.Node) { n.UID = "second" }))
		w.add(newPod("q", "b", later))
		has := func() bool {
			n, err := w.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
			return err == nil && reports(n, diskName)
		}
		w.changeNode(func(n *v1.Node) {
			n.Status.Conditions = newNode("a").Status.Conditions
			n.Status.VolumesInUse = []v1.UniqueVolumeName{diskName}
		})
		if has() {
			t.Error("given away while it is in use")
		}
		w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = nil })
		if !has() {
			t.Error("not given to the other node")
		}
	})
}

// TestADiskOfAPodsOwn may be at several nodes: nothing says that it may not.
func TestADiskOfAPodsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := func(p *v1.Pod) {
			p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "t", IQN: "iqn.2001-04.com.example:d"}}
		}
		w := start(t, newNode("a"), newNode("b"), newPod("p", "a", own), newPod("q", "b", own))
		if got := w.told("p") + w.told("q"); got != "SuccessfulAttachVolumeSuccessfulAttachVolume" || !reports(w.node(), diskName) {
			t.Errorf("told %q; %v", got, w.node().Status.VolumesAttached)
		}
		inUse, total, err := w.c.count()
		if err != nil || inUse[series{"a", attachments.ISCSI}] != 1 || total[series{attachments.ISCSI, wanted}] != 2 || total[series{attachments.ISCSI, actual}] != 2 {
			t.Errorf("in use %v, all %v, %v", inUse, total, err)
		}
		w.deletePod("p")
		if n := w.node(); len(n.Status.VolumesAttached) > 0 {
			t.Errorf("still reported: %v", n.Status.VolumesAttached)
		}
	})
}

// TestANodeThatDiesWithADisk loses it to another one after six minutes, even if nobody has its Node any more.
func TestANodeThatDiesWithADisk(t *testing.T) {
	for how, die := range map[string]func(*world){
		"silent": func(w *world) { w.changeNode(silent) },
		"deleted": func(w *world) {
			if err := w.CoreV1().Nodes().Delete(w.t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
			w.settle()
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, newVolume(disk), newClaim(), newNode("a"), newNode("b"), newPod("p", "a"))
				w.changeNode(func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{diskName} })
				die(w)
				w.deletePod("p")
				w.add(newPod("q", "b"))
				has := func() bool {
					n, err := w.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
					return err == nil && reports(n, diskName)
				}
				time.Sleep(5 * time.Minute)
				if has() {
					t.Error("given away too early")
				}
				time.Sleep(time.Minute)
				w.settle()
				if !has() {
					t.Error("not given to the other node")
				}
			})
		})
	}
}

// TestAThousandPodsOfOneVolume cost one attachment and one write of the node's status.
func TestAThousandPodsOfOneVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{newVolume(), newClaim(), newNode("a")}
		for i := range 1000 {
			objs = append(objs, newPod("p"+string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), "a"))
		}
		w := start(t, objs...)
		w.answers("a", isAttached)
		writes := map[string]int{}
		for _, a := range w.Actions() {
			if resource := a.GetResource().Resource; resource != "events" {
				writes[a.GetVerb()+" "+resource]++
			}
		}
		if writes["create volumeattachments"] != 1 || writes["patch nodes"] != 1 || writes["get nodes"] > 2 {
			t.Errorf("writes: %v", writes)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, newVolume(), newClaim(), newNode("a"), newPod("p", "a"), newPod("q", "a"))
		w.answers("a", isAttached)
		forced.Reset()
		w.changeNode(func(n *v1.Node) { using(n); silent(n); lost(n) })
		check := func(wants ...string) {
			t.Helper()
			r := httptest.NewRecorder()
			legacyregistry.Handler().ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			for _, want := range wants {
				if !strings.Contains(r.Body.String(), want) {
					t.Errorf("there is no %s", want)
				}
			}
		}
		check(
			`storage_count_attachable_volumes_in_use{node="a",volume_plugin="kubernetes.io/csi:csi.example.com"} 2`,
			`attachdetach_controller_total_volumes{plugin_name="kubernetes.io/csi:csi.example.com",state="desired_state_of_world"} 1`,
			`attachdetach_controller_total_volumes{plugin_name="kubernetes.io/csi:csi.example.com",state="actual_state_of_world"} 1`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_attach",status="success",volume_plugin="kubernetes.io/csi:csi.example.com"}`,
		)
		w.deletePod("p")
		w.deletePod("q")
		check(`attach_detach_controller_attachdetach_controller_forced_detaches{reason="out-of-service"} 1`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_detach",status="success",volume_plugin="kubernetes.io/csi:csi.example.com"}`)
	})
}
