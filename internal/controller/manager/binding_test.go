package manager_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// startBinding starts what binds claims and volumes, and what protects those that are bound.
func startBinding(t *testing.T) *cluster {
	t.Helper()
	return start(t, nil, "persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller")
}

func (c *cluster) claim(t *testing.T, name string, change func(*v1.PersistentVolumeClaimSpec)) *v1.PersistentVolumeClaim {
	t.Helper()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}},
	}}
	if change != nil {
		change(&claim.Spec)
	}
	claim, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func (c *cluster) volume(t *testing.T, name, size, class string, change func(*v1.PersistentVolumeSpec)) {
	t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: class,
		Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}},
	}}
	if change != nil {
		change(&pv.Spec)
	}
	if _, err := c.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// becomes waits until a claim is in a phase, and returns it.
func (c *cluster) becomes(t *testing.T, name string, phase v1.PersistentVolumeClaimPhase) (got *v1.PersistentVolumeClaim) {
	t.Helper()
	await(t, c.CoreV1().PersistentVolumeClaims("default"), name, func(claim *v1.PersistentVolumeClaim, gone bool) bool {
		got = claim
		return !gone && claim.Status.Phase == phase
	})
	return got
}

func (c *cluster) volumeBecomes(t *testing.T, name string, phase v1.PersistentVolumePhase) (got *v1.PersistentVolume) {
	t.Helper()
	await(t, c.CoreV1().PersistentVolumes(), name, func(pv *v1.PersistentVolume, gone bool) bool {
		got = pv
		return !gone && pv.Status.Phase == phase
	})
	return got
}

// said waits for an event about an object.
func (c *cluster) said(t *testing.T, uid types.UID, reason string) {
	t.Helper()
	for {
		list, err := c.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if list.Items[i].Reason == reason {
				return
			}
		}
	}
}

// A claim gets the smallest volume that fits, which is let go when the claim goes; and neither goes before the other one
// lets it.
func TestAClaimIsBoundAndItsVolumeReleased(t *testing.T) {
	c := startBinding(t)
	ctx, claims, volumes := t.Context(), c.CoreV1().PersistentVolumeClaims("default"), c.CoreV1().PersistentVolumes()
	claim := c.claim(t, "c", nil)
	c.said(t, claim.UID, "FailedBinding")
	c.volume(t, "big", "9Gi", "", nil)
	bound := c.becomes(t, "c", v1.ClaimBound)
	if bound.Spec.VolumeName != "big" || bound.Status.Capacity.Storage().String() != "9Gi" || len(bound.Status.AccessModes) != 1 {
		t.Errorf("claim: %+v", bound)
	}
	pv := c.volumeBecomes(t, "big", v1.VolumeBound)
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID || pv.Annotations[volume.AnnBoundByController] == "" || pv.Status.LastPhaseTransitionTime == nil {
		t.Errorf("volume: %+v", pv)
	}
	if err := volumes.Delete(ctx, "big", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if pv, err := volumes.Get(ctx, "big", metav1.GetOptions{}); err != nil || pv.Status.Phase != v1.VolumeBound {
		t.Errorf("a bound volume: %v, %v", pv, err)
	}
	if err := claims.Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := claims.Get(ctx, "c", metav1.GetOptions{}); return err })
	awaitGone(t, func() error { _, err := volumes.Get(ctx, "big", metav1.GetOptions{}); return err })
}

// A claim of the name of one that is gone does not get its volume. An administrator can give it to it.
func TestAReleasedVolumeIsNotForTheNextClaimOfThatName(t *testing.T) {
	c := startBinding(t)
	ctx, claims, volumes := t.Context(), c.CoreV1().PersistentVolumeClaims("default"), c.CoreV1().PersistentVolumes()
	c.volume(t, "v", "1Gi", "", nil)
	c.claim(t, "c", nil)
	c.becomes(t, "c", v1.ClaimBound)
	if err := claims.Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := claims.Get(ctx, "c", metav1.GetOptions{}); return err })
	next := c.claim(t, "c", func(s *v1.PersistentVolumeClaimSpec) { s.VolumeName = "v" })
	c.volumeBecomes(t, "v", v1.VolumeReleased)
	c.said(t, next.UID, "FailedBinding")
	if _, err := volumes.Patch(ctx, "v", types.MergePatchType, []byte(`{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if bound := c.becomes(t, "c", v1.ClaimBound); bound.Annotations[volume.AnnBoundByController] != "" {
		t.Errorf("claim: %+v", bound)
	}
	if pv := c.volumeBecomes(t, "v", v1.VolumeBound); pv.Spec.ClaimRef.UID != next.UID {
		t.Errorf("volume: %+v", pv)
	}
}

// A claim without a class gets the one that becomes the default, and its provisioner is asked. One that waits for its
// first pod is left to the scheduler, whose choice is completed.
func TestClassesOfClaims(t *testing.T) {
	c := startBinding(t)
	ctx, claims := t.Context(), c.CoreV1().PersistentVolumeClaims("default")
	c.claim(t, "plain", nil)
	late := c.claim(t, "late", func(s *v1.PersistentVolumeClaimSpec) { s.StorageClassName = new("late") })
	c.said(t, late.UID, "ProvisioningFailed")
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	for _, class := range []*storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "std", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "example.com/maker"},
		{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: volume.NotSupportedProvisioner, VolumeBindingMode: &wait},
	} {
		if _, err := c.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var plain *v1.PersistentVolumeClaim
	await(t, claims, "plain", func(claim *v1.PersistentVolumeClaim, _ bool) bool {
		plain = claim
		return claim.Annotations[volume.AnnStorageProvisioner] == "example.com/maker"
	})
	if *plain.Spec.StorageClassName != "std" || plain.Annotations[volume.AnnBetaStorageProvisioner] != "example.com/maker" {
		t.Errorf("claim: %+v", plain)
	}
	c.said(t, plain.UID, "ExternalProvisioning")
	// What a provisioner does.
	c.volume(t, "made", "1Gi", "std", func(s *v1.PersistentVolumeSpec) {
		s.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "plain", UID: plain.UID}
	})
	if bound := c.becomes(t, "plain", v1.ClaimBound); bound.Spec.VolumeName != "made" {
		t.Errorf("claim: %+v", bound)
	}

	c.said(t, late.UID, "WaitForFirstConsumer")
	c.volume(t, "v", "1Gi", "late", nil)
	free := c.volumeBecomes(t, "v", v1.VolumeAvailable)
	// What the scheduler does.
	chosen, _, err := volume.GetBindVolumeToClaim(free, late)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := claims.Get(ctx, "late", metav1.GetOptions{}); err != nil || got.Spec.VolumeName != "" {
		t.Fatalf("before there is a pod: %+v, %v", got, err)
	}
	if _, err := c.CoreV1().PersistentVolumes().Update(ctx, chosen, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if bound := c.becomes(t, "late", v1.ClaimBound); bound.Spec.VolumeName != "v" {
		t.Errorf("claim: %+v", bound)
	}
}

// A claim whose volume is gone for good is lost.
func TestAClaimLosesItsVolume(t *testing.T) {
	c := startBinding(t)
	ctx, volumes := t.Context(), c.CoreV1().PersistentVolumes()
	c.volume(t, "v", "1Gi", "", nil)
	claim := c.claim(t, "c", nil)
	c.becomes(t, "c", v1.ClaimBound)
	if err := volumes.Delete(ctx, "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := volumes.Patch(ctx, "v", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if lost := c.becomes(t, "c", v1.ClaimLost); len(lost.Status.Capacity) != 0 {
		t.Errorf("claim: %+v", lost)
	}
	c.said(t, claim.UID, "ClaimLost")
	c.volume(t, "v", "1Gi", "", nil) // from a backup
	c.becomes(t, "c", v1.ClaimBound)
}
