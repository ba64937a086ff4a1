package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestContainerThatIsMeant: init and ephemeral containers do not make a name necessary.
func TestContainerThatIsMeant(t *testing.T) {
	named := func(names ...string) []corev1.Container {
		var out []corev1.Container
		for _, n := range names {
			out = append(out, corev1.Container{Name: n})
		}
		return out
	}
	for _, tc := range []struct {
		name       string
		containers []corev1.Container
		want       string
	}{
		{"", named("a"), "a"},
		{"init", named("a"), "init"},
		{"debug", named("a"), "debug"},
		{"b", named("a"), "container b is not valid for pod p"},
		{"", named("a", "b"), "a container name must be specified for pod p, choose one of: [init a b debug]"},
		{"", nil, "a container name must be specified for pod p"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: tc.containers, InitContainers: named("init")}}
		p.Name = "p"
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
		got, err := pickContainer(tc.name, p)
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%q of %d: %s, want %s", tc.name, len(tc.containers), got, tc.want)
		}
	}
}
