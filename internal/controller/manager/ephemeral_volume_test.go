package manager_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ephemeralPod is a pod with a claim of its own for each of the volumes.
func ephemeralPod(name string, volumes ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	for _, v := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: v, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}},
				Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
					Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}},
				},
			},
		}}})
	}
	return p
}

// A pod gets its claims, again if somebody deletes one, and not if the name is somebody else's.
func TestClaimsOfEphemeralVolumes(t *testing.T) {
	c := start(t, nil, "ephemeral-volume-controller", "persistentvolume-binder-controller", "persistentvolumeclaim-protection-controller")
	c.account(t, "default")
	ctx, claims := t.Context(), c.CoreV1().PersistentVolumeClaims("default")
	c.claim(t, "p-taken", nil)
	c.volume(t, "v", "1Gi", "", nil) // for whichever claim is first
	pod, err := c.CoreV1().Pods("default").Create(ctx, ephemeralPod("p", "taken", "mine"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var mine *v1.PersistentVolumeClaim
	await(t, claims, "p-mine", func(claim *v1.PersistentVolumeClaim, gone bool) bool {
		mine = claim
		return !gone
	})
	if !metav1.IsControlledBy(mine, pod) || !*mine.OwnerReferences[0].BlockOwnerDeletion || mine.Labels["l"] != "1" || mine.Annotations["a"] != "2" {
		t.Errorf("claim: %+v", mine)
	}
	c.said(t, pod.UID, "FailedBinding")
	for _, name := range []string{"p-mine", "p-taken"} {
		if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, claims, name, func(claim *v1.PersistentVolumeClaim, gone bool) bool {
			return !gone && claim.DeletionTimestamp == nil && claim.UID != mine.UID && metav1.IsControlledBy(claim, pod)
		})
	}
}
