package localvolume

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/quota"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// world is an API server and the disk of node n1.
type world struct {
	*fake.Clientset
	t    *testing.T
	root string
	free uint64
	// disk, if not nil, returns the disks of other nodes.
	disk func(*v1.Node) Disk
	stop func()
}

func newNode(name, host string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: map[string]string{v1.LabelHostname: host}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
}

func newWorld(t *testing.T, root string, objs ...runtime.Object) *world {
	w := &world{t: t, root: root, free: 10 << 30}
	w.Clientset = fake.NewClientset(append(objs, newNode("n1", "host-1"), newClass(classes.LocalStorage))...)
	// As the API server does: what has finalizers is only marked.
	w.PrependReactor("delete", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		obj, err := w.Tracker().Get(v1.SchemeGroupVersion.WithResource("persistentvolumes"), "", a.(ktesting.DeleteAction).GetName())
		if err != nil || len(obj.(*v1.PersistentVolume).Finalizers) == 0 {
			return err != nil, nil, err
		}
		pv := obj.(*v1.PersistentVolume).DeepCopy()
		pv.DeletionTimestamp = new(metav1.Now())
		return true, nil, w.Tracker().Update(v1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, "")
	})
	w.PrependReactor("update", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		pv := a.(ktesting.UpdateAction).GetObject().(*v1.PersistentVolume)
		if pv.DeletionTimestamp == nil || len(pv.Finalizers) > 0 {
			return false, nil, nil
		}
		return true, pv, w.Tracker().Delete(v1.SchemeGroupVersion.WithResource("persistentvolumes"), "", pv.Name)
	})
	return w
}

// run runs the provisioner until stop.
func (w *world) run() {
	w.t.Helper()
	f := informers.NewSharedInformerFactory(w, 0)
	own := w.local(w.root)
	p, err := New(Config{Name: "test", Disk: func(n *v1.Node) Disk {
		switch {
		case n.Name == "n1":
			return own
		case w.disk != nil:
			return w.disk(n)
		}
		return nil
	}}, w, f)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	w.stop = func() {
		cancel()
		f.Shutdown()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.settle()
}

// local is the disk of a machine, of which this test says how much is free.
func (w *world) local(root string) *Local {
	w.t.Helper()
	l, err := NewLocal(root, func(disk.Room) uint64 { return 1 << 30 })
	if err != nil {
		w.t.Fatal(err)
	}
	l.look = func(string) (disk.Room, error) { return disk.Room{Free: w.free, Total: 100 << 30}, nil }
	return l
}

// settle waits until nothing is going on, retries included.
func (w *world) settle() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

func play(t *testing.T, f func(t *testing.T, root string)) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "volumes")
	synctest.Test(t, func(t *testing.T) { f(t, root) })
}

func newClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: classes.LocalProvisioner,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// newClaim is one that the scheduler has given to n1, unless it is changed.
func newClaim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{
			volume.AnnStorageProvisioner: classes.LocalProvisioner, volume.AnnSelectedNode: "n1",
		}},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: new(classes.LocalStorage), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func (w *world) create(c *v1.PersistentVolumeClaim) {
	w.t.Helper()
	if _, err := w.CoreV1().PersistentVolumeClaims("ns").Create(w.t.Context(), c, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func (w *world) volume(name string) *v1.PersistentVolume {
	w.t.Helper()
	pv, err := w.CoreV1().PersistentVolumes().Get(w.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return pv
}

// release deletes a claim, as far as its volume is concerned.
func (w *world) release(claim string) {
	w.t.Helper()
	if err := w.CoreV1().PersistentVolumeClaims("ns").Delete(w.t.Context(), claim, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	pv := w.volume("pvc-uid-" + claim)
	pv.Status.Phase = v1.VolumeReleased
	w.update(pv)
}

func (w *world) update(pv *v1.PersistentVolume) {
	w.t.Helper()
	if _, err := w.CoreV1().PersistentVolumes().Update(w.t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// said returns the messages of all events.
func (w *world) said() string {
	w.t.Helper()
	list, err := w.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+" "+e.Message)
	}
	return strings.Join(out, "\n")
}

func (w *world) there(name string) bool {
	_, err := os.Lstat(filepath.Join(w.root, name))
	return err == nil
}

func (w *world) fill(name string) {
	w.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(w.root, name, "d"), 0o755), os.WriteFile(filepath.Join(w.root, name, "d/f"), nil, 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

func TestAVolumeLivesAsLongAsItsClaim(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root)
		w.run()
		defer func() { w.stop() }()
		w.create(newClaim("c"))
		pv := w.volume("pvc-uid-c")
		if pv == nil {
			t.Fatalf("no volume: %s", w.said())
		}
		if pv.Spec.Local.Path != filepath.Join(root, "pvc-uid-c") || pv.Spec.ClaimRef.UID != "uid-c" || len(pv.Finalizers) != 1 ||
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "host-1" || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
			t.Errorf("%+v", pv)
		}
		var st, top unix.Stat_t
		if err := errors.Join(unix.Lstat(pv.Spec.Local.Path, &st), unix.Lstat(root, &top)); err != nil || st.Mode != unix.S_IFDIR|0o777 || top.Mode != unix.S_IFDIR|0o700 {
			t.Errorf("modes %o and %o, %v", st.Mode, top.Mode, err)
		}
		if said := w.said(); said != "ProvisioningSucceeded Successfully provisioned volume pvc-uid-c" {
			t.Error(said)
		}
		w.fill("pvc-uid-c")
		w.stop()
		w.run() // it finds everything as it is
		if !w.there("pvc-uid-c/d/f") {
			t.Error("the data is gone")
		}
		w.release("c")
		if w.there("pvc-uid-c") || w.volume("pvc-uid-c") != nil {
			t.Errorf("left: %v, %+v, %s", w.there("pvc-uid-c"), w.volume("pvc-uid-c"), w.said())
		}
	})
}

func TestRefusals(t *testing.T) {
	block := v1.PersistentVolumeBlock
	for want, change := range map[string]func(*v1.PersistentVolumeClaim, *storagev1.StorageClass){
		"": func(*v1.PersistentVolumeClaim, *storagev1.StorageClass) {},
		"WaitForFirstConsumer": func(_ *v1.PersistentVolumeClaim, c *storagev1.StorageClass) {
			c.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		},
		"has parameters": func(_ *v1.PersistentVolumeClaim, c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"path": "/"}
		},
		"ReadWriteOncePod": func(c *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		},
		"volumeMode Block": func(c *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) { c.Spec.VolumeMode = &block },
		"selector": func(c *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.Selector = &metav1.LabelSelector{}
		},
		"dataSource": func(c *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.DataSource = &v1.TypedLocalObjectReference{}
		},
		"attributes": func(c *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.VolumeAttributesClassName = new("gold")
		},
	} {
		claim, class := newClaim("c"), newClass("x")
		change(claim, class)
		if got := refusal(claim, class); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: %q", want, got)
		}
	}
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root)
		w.run()
		defer w.stop()
		w.create(newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }))
		w.create(newClaim("elsewhere", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" }))
		w.create(newClaim("nowhere", func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) }))
		w.create(newClaim("others", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = "example.com/p" }))
		if said := w.said(); said != `ProvisioningFailed failed to provision volume with StorageClass "local": the volume is a directory: volumeMode Block is not possible` {
			t.Error(said)
		}
		if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

func TestRoom(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root)
		w.run()
		defer w.stop()
		room := func() *storagev1.CSIStorageCapacity {
			list, err := w.StorageV1().CSIStorageCapacities("kube-system").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatalf("%v, %v", list.Items, err)
			}
			return &list.Items[0]
		}
		if r := room(); r.StorageClassName != classes.LocalStorage || r.Capacity.String() != "9Gi" || r.NodeTopology.MatchLabels[v1.LabelHostname] != "host-1" || r.OwnerReferences[0].UID != "node-n1" {
			t.Errorf("%+v", r)
		}
		w.free = 1536 << 20
		w.create(newClaim("c"))
		claim, err := w.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		if _, chosen := claim.Annotations[volume.AnnSelectedNode]; err != nil || chosen || w.there("pvc-uid-c") {
			t.Errorf("the scheduler is not asked again: %+v, %v", claim, err)
		}
		if said := w.said(); said != `ProvisioningFailed failed to provision volume with StorageClass "local": node n1 has room for 512Mi, and the claim asks for 1Gi` {
			t.Error(said)
		}
		if r := room(); r.Capacity.String() != "512Mi" {
			t.Errorf("told %s", r.Capacity)
		}
		w.free = 5 << 30 // nobody tells
		time.Sleep(patience)
		w.settle()
		if r := room(); r.Capacity.String() != "4Gi" {
			t.Errorf("told %s", r.Capacity)
		}
		before := len(w.Actions())
		time.Sleep(time.Hour)
		w.settle()
		if n := len(w.Actions()) - before; n != 0 {
			t.Errorf("%d calls while nothing happens", n)
		}
		if err := w.StorageV1().StorageClasses().Delete(t.Context(), classes.LocalStorage, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if list, err := w.StorageV1().CSIStorageCapacities("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("room for a class that is gone: %v, %v", list.Items, err)
		}
	})
}

// growing is a claim that has a volume of one gibibyte, and asks for more.
func growing(gib int64) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	claim := newClaim("c")
	pv := newVolume(claim, newClass(classes.LocalStorage), "/d", "host-1")
	claim.Spec.VolumeName = pv.Name
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(gib<<30, resource.BinarySI)}
	claim.Status = v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		Conditions:                []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimResizing, Status: v1.ConditionTrue}},
		AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimControllerResizeInProgress},
	}
	return claim, pv
}

// sizes are what the volume has, and what the claim's status says.
func (w *world) sizes() string {
	w.t.Helper()
	claim, err := w.CoreV1().PersistentVolumeClaims("ns").Get(w.t.Context(), "c", metav1.GetOptions{})
	pv, err2 := w.CoreV1().PersistentVolumes().Get(w.t.Context(), "pvc-uid-c", metav1.GetOptions{})
	if err := errors.Join(err, err2); err != nil {
		w.t.Fatal(err)
	}
	return pv.Spec.Capacity.Storage().String() + " " + claim.Status.Capacity.Storage().String()
}

// asContainer does something as the processes of ordinary containers do it: without CAP_SYS_RESOURCE, which goes past quotas.
func asContainer(t *testing.T, do func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // for good: the thread ends with the goroutine
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

// TestSizesHold where the file system limits what projects hold.
func TestSizesHold(t *testing.T) {
	root := t.TempDir()
	const mib = 1 << 20
	fill := func(n int) error {
		return asContainer(t, func() error {
			return os.WriteFile(filepath.Join(root, "pvc-1", "f"), bytes.Repeat([]byte("x"), n), 0o600)
		})
	}
	for range 2 { // as after a kill
		if err := makeDirectory(root, "pvc-1", 4*mib); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	limited, err := quota.Enforced(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(5 * mib); (err != nil) != limited {
		t.Errorf("more than its size: %v; limits are enforced: %v", err, limited)
	}
	if err := limitDirectory(root, "pvc-1", 8*mib); err != nil {
		t.Fatal(err)
	}
	if err := fill(5 * mib); err != nil {
		t.Errorf("after it has grown: %v", err)
	}
	if err := errors.Join(limitDirectory(root, "gone", mib), onDirectory(root, "pvc-1", quota.Release)); err != nil {
		t.Error(err)
	}
	if err := fill(20 * mib); err != nil {
		t.Errorf("after it was let go: %v", err)
	}
	if !limited {
		t.Skip("this file system enforces no project quotas: make test-v2")
	}
}

func TestGrowth(t *testing.T) {
	elsewhere := func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"host-2"}
	}
	for name, test := range map[string]struct {
		gib        int64
		change     func(*v1.PersistentVolume)
		want, says string
	}{
		"there is room":       {4, nil, "4Gi 4Gi", "VolumeResizeSuccessful Resize volume succeeded"},
		"it asks for no more": {1, nil, "1Gi 1Gi", ""},
		"it was killed between the two": {4, func(pv *v1.PersistentVolume) { pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("4Gi") },
			"4Gi 4Gi", "VolumeResizeSuccessful Resize volume succeeded"},
		"another node has it":             {4, elsewhere, "1Gi 1Gi", ""},
		"somebody else has made it":       {4, func(pv *v1.PersistentVolume) { pv.Annotations = nil }, "1Gi 1Gi", ""},
		"the volume is another claim's":   {4, func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" }, "1Gi 1Gi", ""},
		"there is room, but not for more": {11, nil, "1Gi 1Gi", `VolumeResizeFailed resize volume "pvc-uid-c" from 1Gi to 11Gi failed: node n1 has room for 9Gi more`},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, root string) {
				claim, pv := growing(test.gib)
				if test.change != nil {
					test.change(pv)
				}
				w := newWorld(t, root, claim, pv)
				w.run()
				defer w.stop()
				if got := w.sizes(); got != test.want {
					t.Errorf("sizes %s, want %s", got, test.want)
				}
				if said := w.said(); said != test.says {
					t.Errorf("said %q", said)
				}
				is, err := w.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if test.want == "4Gi 4Gi" && (len(is.Status.Conditions) > 0 || len(is.Status.AllocatedResourceStatuses) > 0 || is.Status.AllocatedResources.Storage().String() != "4Gi") {
					t.Errorf("status: %+v", is.Status)
				}
			})
		})
	}
}

// TestGrowthWaitsForRoom, of which nobody tells, or until the claim asks for less.
func TestGrowthWaitsForRoom(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		claim, pv := growing(20)
		w := newWorld(t, root, claim, pv)
		w.run()
		defer w.stop()
		w.free = 30 << 30
		time.Sleep(patience)
		w.settle()
		if got := w.sizes(); got != "20Gi 20Gi" {
			t.Errorf("sizes %s", got)
		}
		before := len(w.Actions())
		time.Sleep(time.Hour)
		w.settle()
		if n := len(w.Actions()) - before; n != 0 {
			t.Errorf("%d calls while nothing happens", n)
		}
	})
}

// TestNothingIsLeftOfAKill: a process may end between the directory and the volume. Data without a volume is kept.
func TestNothingIsLeftOfAKill(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root, newClaim("half"))
		for _, name := range []string{"pvc-uid-half", "pvc-uid-gone"} {
			if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.fill("pvc-uid-kept")
		w.fill("something-else")
		w.run()
		defer w.stop()
		if w.volume("pvc-uid-half") == nil || !w.there("pvc-uid-half") || w.there("pvc-uid-gone") || !w.there("pvc-uid-kept/d/f") || !w.there("something-else/d/f") {
			entries, err := os.ReadDir(root)
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// TestAClaimThatGoesWhileItsVolumeCannotBeWritten leaves no directory behind.
func TestAClaimThatGoesWhileItsVolumeCannotBeWritten(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root)
		w.PrependReactor("create", "persistentvolumes", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("no"))
		})
		w.run()
		defer w.stop()
		w.create(newClaim("c"))
		if !w.there("pvc-uid-c") || !strings.Contains(w.said(), "ProvisioningFailed") {
			t.Error(w.said())
		}
		if err := w.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.there("pvc-uid-c") {
			t.Error("the directory is left")
		}
	})
}

// TestForgedVolumes: whoever can write PersistentVolumes cannot have the node remove what it has not made.
func TestForgedVolumes(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		victim := filepath.Join(filepath.Dir(root), "victim")
		forged := func(name, path string) *v1.PersistentVolume {
			pv := newVolume(newClaim("x"), newClass(classes.LocalStorage), path, "host-1")
			pv.Name, pv.Status.Phase = name, v1.VolumeReleased
			return pv
		}
		w := newWorld(t, root, forged("pvc-1", victim), forged("pvc-2", "/"), forged("pvc-3", root), forged("pvc-4", filepath.Join(root, "pvc-5")),
			forged("pvc-6", root+"/../victim"), forged("other", filepath.Join(root, "other")))
		elsewhere := forged("pvc-7", filepath.Join(root, "pvc-7"))
		elsewhere.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "host-2"
		if err := w.Tracker().Add(elsewhere); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"../victim", "pvc-5", "other", "pvc-7"} {
			w.fill(name)
		}
		if err := os.Symlink(victim, filepath.Join(root, "pvc-8")); err != nil {
			t.Fatal(err)
		}
		if err := w.Tracker().Add(forged("pvc-8", filepath.Join(root, "pvc-8"))); err != nil {
			t.Fatal(err)
		}
		w.run()
		defer w.stop()
		for _, name := range []string{"../victim/d/f", "pvc-5/d/f", "other/d/f", "pvc-7/d/f"} {
			if !w.there(name) {
				t.Errorf("%s is gone", name)
			}
		}
		if n := strings.Count(w.said(), "VolumeFailedDelete"); n != 6 {
			t.Errorf("%d events: %s", n, w.said())
		}
	})
}

func TestWhatIsMountedStays(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w := newWorld(t, root)
		w.run()
		defer w.stop()
		w.create(newClaim("c"))
		w.fill("pvc-uid-c")
		pod := t.TempDir()
		if err := unix.Mount(filepath.Join(root, "pvc-uid-c"), pod, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		w.release("c") // by force, while a pod still has it
		if !w.there("pvc-uid-c/d/f") || !strings.Contains(w.said(), "VolumeFailedDelete the volume is in use: it is still mounted at "+pod) {
			t.Error(w.said())
		}
		if err := unix.Unmount(pod, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.settle()
		if w.there("pvc-uid-c") || w.volume("pvc-uid-c") != nil {
			t.Error("it is not removed afterwards")
		}
	})
}

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		policy  v1.PersistentVolumeReclaimPolicy
		phase   v1.PersistentVolumePhase
		guarded bool
		ending  bool
		free    bool
		want    step
	}{
		"bound":                    {v1.PersistentVolumeReclaimDelete, v1.VolumeBound, true, false, false, keep},
		"new":                      {v1.PersistentVolumeReclaimDelete, v1.VolumePending, true, false, false, keep},
		"released":                 {v1.PersistentVolumeReclaimDelete, v1.VolumeReleased, true, false, false, discard},
		"half removed":             {v1.PersistentVolumeReclaimDelete, v1.VolumeReleased, true, true, false, discard},
		"deleted while bound":      {v1.PersistentVolumeReclaimDelete, v1.VolumeBound, true, true, false, keep},
		"deleted while free":       {v1.PersistentVolumeReclaimDelete, v1.VolumeAvailable, true, true, true, discard},
		"free":                     {v1.PersistentVolumeReclaimDelete, v1.VolumeAvailable, true, false, true, keep},
		"to be kept":               {v1.PersistentVolumeReclaimRetain, v1.VolumeReleased, true, false, false, unguard},
		"kept":                     {v1.PersistentVolumeReclaimRetain, v1.VolumeReleased, false, false, false, keep},
		"kept, deleted":            {v1.PersistentVolumeReclaimRetain, v1.VolumeReleased, true, true, false, unguard},
		"not to be kept after all": {v1.PersistentVolumeReclaimDelete, v1.VolumeBound, false, false, false, guard},
	} {
		pv := newVolume(newClaim("c"), newClass("x"), "/d", "h")
		pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase = tc.policy, tc.phase
		if !tc.guarded {
			pv.Finalizers = nil
		}
		if tc.ending {
			pv.DeletionTimestamp = new(metav1.Now())
		}
		if tc.free {
			pv.Spec.ClaimRef = nil
		}
		if got := decide(pv); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
