package daemon

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/pods"
)

// A drain takes everything but what cannot start elsewhere; a pod that only claims to be the node's own can.
func TestWhatADrainTakes(t *testing.T) {
	for name, c := range map[string]struct {
		pod  v1.Pod
		want bool
	}{
		"plain":      {v1.Pod{}, true},
		"claims":     {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pods.AnnotationConfigSource: "file"}}}, true},
		"mirror":     {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pods.AnnotationConfigMirror: "x"}}}, false},
		"done":       {v1.Pod{Status: v1.PodStatus{Phase: v1.PodSucceeded}}, false},
		"daemon set": {v1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}}}, false},
	} {
		if got := movable(&c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
