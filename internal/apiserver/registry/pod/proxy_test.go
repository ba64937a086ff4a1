package pod

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

type onePod struct{ *corev1.Pod }

func (p onePod) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return p.Pod, nil
}

func TestProxyLeadsToPods(t *testing.T) {
	for _, c := range []struct {
		id, ip string
		ports  []int32
		want   string
	}{
		{"p", "10.0.0.1", []int32{8080, 9090}, "//10.0.0.1:8080"},
		{"p", "10.0.0.1", nil, "//10.0.0.1"},
		{"p:99", "10.0.0.1", []int32{8080}, "//10.0.0.1:99"},
		{"https:p:99", "fd00::1", nil, "https://[fd00::1]:99"},
		{"p", "fd00::1", nil, "//[fd00::1]"},
		{"p", "", nil, "address not allowed"},
		{"p", "127.0.0.1", nil, "address not allowed"},
		{"p", "169.254.169.254", nil, "address not allowed"},
		{"a:b:c:d", "10.0.0.1", nil, `invalid pod request "a:b:c:d"`},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: c.ip}, Spec: corev1.PodSpec{Containers: []corev1.Container{{}, {}}}}
		for _, port := range c.ports {
			pod.Spec.Containers[1].Ports = append(pod.Spec.Containers[1].Ports, corev1.ContainerPort{ContainerPort: port})
		}
		got, err := NewProxy(onePod{pod}, nil).locate(t.Context(), c.id)
		switch {
		case err == nil && got.String() != c.want:
			t.Errorf("%s of %q: %s, want %s", c.id, c.ip, got, c.want)
		case err != nil && (!apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s of %q: %v, want %s", c.id, c.ip, err, c.want)
		}
	}
}
