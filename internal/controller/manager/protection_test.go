package manager_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/apiserver"
)

const gigabyte = "1Gi"

func TestAClaimOutlivesThePodThatUsesIt(t *testing.T) {
	c := start(t, nil, "persistentvolumeclaim-protection-controller")
	c.account(t, "default")
	ctx, claims, pods := t.Context(), c.CoreV1().PersistentVolumeClaims("default"), c.CoreV1().Pods("default")
	for _, name := range []string{"used", "free"} {
		claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(claim.Finalizers) != 1 || claim.Finalizers[0] != "kubernetes.io/pvc-protection" {
			t.Errorf("finalizers of %s: %q", name, claim.Finalizers)
		}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{
		NodeName:   "n",
		Containers: []v1.Container{{Name: "c", Image: "i"}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "used"},
		}}},
	}}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"used", "free"} {
		if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitGone(t, func() error { _, err := claims.Get(ctx, "free", metav1.GetOptions{}); return err })
	if claim, err := claims.Get(ctx, "used", metav1.GetOptions{}); err != nil || claim.DeletionTimestamp == nil {
		t.Fatalf("the claim of a pod: %v, %v", claim, err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := claims.Get(ctx, "used", metav1.GetOptions{}); return err })
}

// awaitGone returns once get finds nothing.
func awaitGone(t *testing.T, get func() error) {
	t.Helper()
	for {
		err := get()
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestABoundVolumeStays(t *testing.T) {
	c := start(t, nil, "persistentvolume-protection-controller")
	ctx, volumes := t.Context(), c.CoreV1().PersistentVolumes()
	for name, phase := range map[string]v1.PersistentVolumePhase{"pv": v1.VolumeBound, "free": v1.VolumeAvailable} {
		volume, err := volumes.Create(ctx, &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeSpec{
				AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)},
				PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		volume.Status.Phase = phase
		if _, err := volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pv", "free"} {
		if err := volumes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitGone(t, func() error { _, err := volumes.Get(ctx, "free", metav1.GetOptions{}); return err })
	volume, err := volumes.Get(ctx, "pv", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume.Status.Phase = v1.VolumeReleased
	if _, err := volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := volumes.Get(ctx, "pv", metav1.GetOptions{}); return err })
}

func TestAClassOfAttributesStaysWhileAVolumeHasIt(t *testing.T) {
	c := start(t, nil, "volumeattributesclass-protection-controller")
	ctx, volumes, classes := t.Context(), c.CoreV1().PersistentVolumes(), c.StorageV1().VolumeAttributesClasses()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "csi.example.com", Parameters: map[string]string{"iops": "100"}}
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := volumes.Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:               []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:                  v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)},
			VolumeAttributesClassName: new("gold"),
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := classes.Delete(ctx, "gold", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := classes.Get(ctx, "gold", metav1.GetOptions{}); err != nil || got.DeletionTimestamp == nil {
		t.Fatalf("class %v, %v", got, err)
	}
	volume, err := volumes.Get(ctx, "pv", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume.Finalizers = nil // nobody here removes it
	if _, err := volumes.Update(ctx, volume, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := volumes.Delete(ctx, "pv", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := classes.Get(ctx, "gold", metav1.GetOptions{}); return err })
}

// A group stays while pods of it are not over; those that are over do not hold it, nor those of another namespace.
func TestAPodGroupOutlivesItsPods(t *testing.T) {
	c := startWith(t, func(cfg *apiserver.Config) { cfg.FeatureGates = map[string]bool{"GenericWorkload": true} }, nil, "podgroup-protection-controller")
	c.account(t, "default")
	ctx, groups, pods := t.Context(), c.SchedulingV1beta1().PodGroups("default"), c.CoreV1().Pods("default")
	group := func(name string) *schedulingv1beta1.PodGroup {
		g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
		return g
	}
	member := func(name, group string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Name: "c", Image: "i"}}}}
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
		return p
	}
	for _, name := range []string{"used", "free", "taken"} {
		if _, err := groups.Create(ctx, group(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, of := range map[string]string{"a": "used", "b": "used"} {
		if _, err := pods.Create(ctx, member(name, of), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Whoever takes the finalizer off may do so: nobody gives it back.
	taken, err := groups.Patch(ctx, "taken", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil || len(taken.Finalizers) != 0 {
		t.Fatal(err, taken.Finalizers)
	}
	for _, name := range []string{"used", "free"} {
		if err := groups.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitGone(t, func() error { _, err := groups.Get(ctx, "free", metav1.GetOptions{}); return err })
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	if g, err := groups.Get(ctx, "used", metav1.GetOptions{}); err != nil || g.DeletionTimestamp == nil {
		t.Fatalf("the group of a pod: %v, %v", g, err)
	}
	if _, err := pods.Patch(ctx, "b", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := groups.Get(ctx, "used", metav1.GetOptions{}); return err })
	if taken, err = groups.Get(ctx, "taken", metav1.GetOptions{}); err != nil || len(taken.Finalizers) != 0 {
		t.Errorf("%v, %v", err, taken.Finalizers)
	}
}

// A claim with a volume says since when no pod has used it: one that waits for a node does, one that is over does not.
func TestAClaimSaysWhetherItIsUsed(t *testing.T) {
	c := start(t, nil, "persistentvolumeclaim-protection-controller")
	c.account(t, "default")
	ctx, claims, pods := t.Context(), c.CoreV1().PersistentVolumeClaims("default"), c.CoreV1().Pods("default")
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "unbound"}, Spec: claim.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Patch(ctx, "c", types.MergePatchType, []byte(`{"status":{"phase":"Bound"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	var last metav1.Time
	says := func(want v1.ConditionStatus, reason string) {
		t.Helper()
		await(t, claims, "c", func(c *v1.PersistentVolumeClaim, _ bool) bool {
			for _, is := range c.Status.Conditions {
				if is.Type == v1.PersistentVolumeClaimUnused && is.Status == want && is.Reason == reason && !is.LastTransitionTime.Before(&last) {
					last = is.LastTransitionTime
					return true
				}
			}
			return false
		})
	}
	says(v1.ConditionTrue, "NoPodsUsingPVC")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", Image: "i"}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
		}}},
	}}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says(v1.ConditionFalse, "PodUsingPVC")
	if _, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	says(v1.ConditionTrue, "NoPodsUsingPVC")
	if c, err := claims.Get(ctx, "unbound", metav1.GetOptions{}); err != nil || len(c.Status.Conditions) != 0 {
		t.Errorf("%v; a claim without a volume says %v", err, c.Status.Conditions)
	}
	// Whoever removes the condition gets it again.
	if _, err := claims.Patch(ctx, "c", types.MergePatchType, []byte(`{"status":{"conditions":null}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	says(v1.ConditionTrue, "NoPodsUsingPVC")
}
