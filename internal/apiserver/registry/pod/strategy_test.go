package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAppArmorByAnnotation: a pod of an older manifest ran unconfined, because nodes read only the field.
func TestAppArmorByAnnotation(t *testing.T) {
	const key = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			key + "local": "localhost/mine", key + "default": "runtime/default", key + "odd": "localhost/", key + "set": "unconfined",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "local"}, {Name: "default"}, {Name: "odd"}, {Name: "none"},
			{Name: "set", SecurityContext: &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}},
		}},
	}
	PrepareCreate(t.Context(), p)
	want := map[string]string{"local": "Localhost mine", "default": "RuntimeDefault", "odd": "", "none": "", "set": "RuntimeDefault"}
	for _, c := range p.Spec.Containers {
		got := ""
		if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
			got = string(sc.AppArmorProfile.Type)
			if l := sc.AppArmorProfile.LocalhostProfile; l != nil {
				got += " " + *l
			}
		}
		if got != want[c.Name] {
			t.Errorf("%s: %q, want %q", c.Name, got, want[c.Name])
		}
	}
}

// TestPodResourcesCountContainersOfWebhooks: what the pod as a whole requests is derived when all its containers are
// there (PodLevelResourcesFixDefaulting), and the QoS class after that.
func TestPodResourcesCountContainersOfWebhooks(t *testing.T) {
	amount := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{Requests: amount("3", "3Gi")},
		Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: amount("1", "1Gi"), Limits: amount("2", "1Gi")}},
			{Name: "b", Resources: corev1.ResourceRequirements{Requests: amount("1", "1Gi"), Limits: amount("2", "1Gi")}},
		},
	}}
	PrepareCreate(t.Context(), p)
	limits := p.Spec.Resources.Limits
	if cpu, memory := limits.Cpu().String(), limits.Memory().String(); cpu != "4" || memory != "3Gi" {
		t.Errorf("limits of the pod: cpu %s, memory %s; want 4 and (no less than is requested) 3Gi", cpu, memory)
	}
	if p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("QoS class %s", p.Status.QOSClass)
	}
	kept := p.DeepCopy()
	kept.Spec.Resources = nil
	PrepareUpdate(t.Context(), kept, p)
	if kept.Spec.Resources == nil {
		t.Error("a client that does not know the field took it away")
	}
}
