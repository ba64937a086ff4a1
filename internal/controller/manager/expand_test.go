package manager_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim may ask for more if its class lets it, and is told then who is to give it, with the rights of the account.
func TestAClaimThatAsksForMore(t *testing.T) {
	c := start(t, nil, "persistentvolume-expander-controller")
	ctx, claims := t.Context(), c.CoreV1().PersistentVolumeClaims("default")
	for name, grows := range map[string]bool{"fixed": false, "grows": true} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "kubernetes.io/aws-ebs", AllowVolumeExpansion: &grows}
		if _, err := c.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		one := v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}
		modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &name, VolumeName: name, Resources: v1.VolumeResourceRequirements{Requests: one},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: one, StorageClassName: name,
			ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: name, UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-" + name}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: modes, Capacity: one}
		if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Gi")
		if _, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); apierrors.IsForbidden(err) == grows || err != nil && grows {
			t.Errorf("class %s: %v", name, err)
		}
		if !grows {
			continue
		}
		await(t, claims, name, func(claim *v1.PersistentVolumeClaim, _ bool) bool {
			return claim.Annotations["volume.kubernetes.io/storage-resizer"] == "ebs.csi.aws.com"
		})
		c.said(t, claim.UID, "ExternalExpanding")
	}
}
