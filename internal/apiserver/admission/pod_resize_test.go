package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestResizeBeyondTheNode(t *testing.T) {
	node := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
	for _, tc := range []struct{ cpu, memory, want string }{
		{"2", "1Gi", ""},
		{"2001m", "1Gi", "node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000"},
		{"3", "2Gi", "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(tc.cpu), "memory": resource.MustParse(tc.memory)},
		}}}}}
		got := ""
		if err := fits(pod, node); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s, %s: %q, want %q", tc.cpu, tc.memory, got, tc.want)
		}
	}
}
