package podworker

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// TestLastWordsOfAnOrphanInItsLog: a static pod whose manifest was removed while the kubelet was
// down has no spec any more. The last output of its containers in their logs used to be missing
// from the status (seed 90210063).
func TestLastWordsOfAnOrphanInItsLog(t *testing.T) {
	const fallback = v1.TerminationMessageFallbackToLogsOnError
	inSpec := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", TerminationMessagePolicy: fallback}}}}
	for name, tc := range map[string]struct {
		pod        *v1.Pod
		annotation v1.TerminationMessagePolicy
		want       string
	}{
		"orphan":                         {&v1.Pod{}, fallback, "u c " + string(fallback)},
		"orphan that reads a file":       {&v1.Pod{}, v1.TerminationMessageReadFile, "u c File"},
		"made by another, and with spec": {inSpec, "", "u c " + string(fallback)},
		"of which nothing is known":      {&v1.Pod{}, "", "u c File"},
	} {
		w := &Worker{uid: "u", messages: map[string]string{}, deps: Deps{
			FinalMessage: func(uid types.UID, c *podplan.Container, policy v1.TerminationMessagePolicy, _ string) string {
				return string(uid) + " " + c.Name + " " + string(policy)
			},
		}}
		got := w.containerOf(tc.pod, "s", &runtimeapi.ContainerStatus{
			Id: "1", Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, State: runtimeapi.ContainerState_CONTAINER_EXITED,
			Annotations: map[string]string{pods.AnnotationMessagePolicy: string(tc.annotation)},
		})
		if got.Message != tc.want {
			t.Errorf("%s: %q, want %q", name, got.Message, tc.want)
		}
	}
}
