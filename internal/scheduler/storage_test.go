package scheduler_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
)

// Classes of volumes: those that exist, and those that are made.
const (
	existing = "existing"
	made     = "made"
)

func storageClass(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// classes returns both.
func classes() []runtime.Object {
	return []runtime.Object{storageClass(existing, volume.NotSupportedProvisioner),
		storageClass(made, "example.com/maker")}
}

func claim(name, class, size string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// localVolume is one that a label's value reaches.
func localVolume(name, size, key, value string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: existing, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/x"}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn,
					Values: []string{value}}}},
			}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

func using(claims ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, c := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: c, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			}})
		}
	}
}

// versioned gives volumes and claims of both sorts true versions, and refuses changes of old ones, which the fake API server does
// not. refuse may refuse others.
func versioned(client *fake.Clientset, refuse func(ktesting.Action) error) {
	var last atomic.Int64
	last.Store(1)
	next := func() string { return strconv.FormatInt(last.Add(1), 10) }
	for _, kind := range []string{"persistentvolumes", "persistentvolumeclaims", "resourceclaims"} {
		client.PrependReactor("create", kind, func(a ktesting.Action) (bool, runtime.Object, error) {
			c, _ := a.(ktesting.CreateAction)
			obj, err := meta.Accessor(c.GetObject())
			if err == nil {
				obj.SetResourceVersion(next())
			}
			return false, nil, err
		})
		client.PrependReactor("update", kind, func(a ktesting.Action) (bool, runtime.Object, error) {
			if err := refuse(a); err != nil {
				return true, nil, err
			}
			u, _ := a.(ktesting.UpdateAction)
			obj := u.GetObject().DeepCopyObject()
			m, err := meta.Accessor(obj)
			if err != nil {
				return true, nil, err
			}
			now, err := client.Tracker().Get(a.GetResource(), a.GetNamespace(), m.GetName())
			if err != nil {
				return true, nil, err
			}
			if old, err := meta.Accessor(now); err != nil || old.GetResourceVersion() != m.GetResourceVersion() {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), err)
			}
			m.SetResourceVersion(next())
			return true, obj, client.Tracker().Update(a.GetResource(), obj, a.GetNamespace())
		})
	}
}

// binder stands in for the controller of volumes, and for a provisioner.
type binder struct {
	client kubernetes.Interface
	// fails reports whether a volume cannot be made on the node; it may be nil.
	fails func(node string) bool
}

// run looks at everything once in a while until ctx ends.
func (b binder) run(ctx context.Context, every time.Duration, fail func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		if err := b.bind(ctx); err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
			fail(err)
		}
	}
}

// bind completes what the scheduler has begun.
func (b binder) bind(ctx context.Context) error {
	claims := map[types.UID]*v1.PersistentVolumeClaim{}
	list, err := b.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		claims[list.Items[i].UID] = &list.Items[i]
		if err := b.make(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	volumes, err := b.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range volumes.Items {
		pv := &volumes.Items[i]
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
			if err := b.phase(ctx, pv, v1.VolumeAvailable); err != nil {
				return err
			}
			continue
		}
		if err := b.complete(ctx, pv, claims[pv.Spec.ClaimRef.UID]); err != nil {
			return err
		}
	}
	return nil
}

// make makes a volume for a claim whose node was selected, or says that it cannot.
func (b binder) make(ctx context.Context, c *v1.PersistentVolumeClaim) error {
	node := c.Annotations[volume.AnnSelectedNode]
	if node == "" || c.Spec.VolumeName != "" || *c.Spec.StorageClassName != made {
		return nil
	}
	if b.fails != nil && b.fails(node) {
		delete(c.Annotations, volume.AnnSelectedNode)
		_, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		return err
	}
	pv := localVolume("for-"+string(c.UID), c.Spec.Resources.Requests.Storage().String(), v1.LabelHostname, node)
	pv.Spec.StorageClassName, pv.ResourceVersion, pv.UID = made, "", ""
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace,
		Name: c.Name, UID: c.UID}
	if _, err := b.client.CoreV1().PersistentVolumes().Create(ctx, pv,
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// complete binds a claim to the volume that is kept for it.
func (b binder) complete(ctx context.Context, pv *v1.PersistentVolume, c *v1.PersistentVolumeClaim) error {
	if c == nil {
		return b.phase(ctx, pv, v1.VolumeReleased)
	}
	if err := b.phase(ctx, pv, v1.VolumeBound); err != nil || c.Spec.VolumeName != "" {
		return err
	}
	c.Spec.VolumeName = pv.Name
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	c, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	c.Status.Phase = v1.ClaimBound
	_, err = b.client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}

func (b binder) phase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase) error {
	if pv.Status.Phase == phase {
		return nil
	}
	pv.Status.Phase = phase
	_, err := b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{})
	return err
}

// runBinder runs a binder until the test ends, or it is stopped.
func runBinder(t *testing.T, b binder, every time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.run(ctx, every, func(err error) { t.Error(err) })
	}()
	return func() {
		cancel()
		<-done
	}
}
