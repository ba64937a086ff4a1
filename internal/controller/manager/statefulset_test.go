package manager_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAPodThatIsScaledDownIsNotToldToBeUpdated: its claim gets an owner before it goes, which is not told as an update of the
// pod.
func TestAPodThatIsScaledDownIsNotToldToBeUpdated(t *testing.T) {
	c := start(t, nil, "statefulset-controller")
	c.account(t, "default")
	ctx, sets, pods := t.Context(), c.AppsV1().StatefulSets("default"), c.CoreV1().Pods("default")
	labels := map[string]string{"app": "web"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}},
		VolumeClaimTemplates: []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}},
		}}},
		PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		},
	}}
	if _, err := sets.Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, pods, "web-0", func(_ *v1.Pod, gone bool) bool { return !gone })
	if _, err := sets.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := pods.Get(ctx, "web-0", metav1.GetOptions{}); return err })
	claim, err := c.CoreV1().PersistentVolumeClaims("default").Get(ctx, "data-web-0", metav1.GetOptions{})
	if err != nil || len(claim.OwnerReferences) != 1 {
		t.Errorf("%v; the claim belongs to %v", err, claim.OwnerReferences)
	}
	said := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); !said["SuccessfulDelete"]; time.Sleep(20 * time.Millisecond) {
		events, err := c.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%v; the events are %v", err, said)
		}
		for _, e := range events.Items {
			said[e.Reason] = true
		}
	}
	if said["SuccessfulUpdate"] {
		t.Errorf("the events are %v", said)
	}
}
