package podops

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// TestLinksOfContainersThatOthersRemoved: when another client of the runtime removed a sandbox, the
// links to its containers' logs used to stay for ever.
func TestLinksOfContainersThatOthersRemoved(t *testing.T) {
	dir := t.TempDir()
	o := &Ops{Config: Config{PodLogs: filepath.Join(dir, "pods"), ContainerLogs: filepath.Join(dir, "containers")}}
	if err := os.Mkdir(o.ContainerLogs, 0o755); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	other := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u-2"}}
	start := func(pod *v1.Pod, id string, attempt uint32, known ...string) {
		in := &podplan.Input{Pod: pod}
		for _, k := range append(known, id) {
			in.Containers = append(in.Containers, podplan.Container{Name: "c", ID: k})
		}
		o.addLogLink(t.Context(), in, podplan.Op{Name: "c", ID: id, Attempt: attempt})
	}
	want := func(when string, ids ...string) {
		t.Helper()
		entries, err := os.ReadDir(o.ContainerLogs)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		names := make([]string, 0, len(ids))
		for _, id := range ids {
			names = append(names, filepath.Base(criconfig.LogSymlink("", pod, "c", id)))
		}
		if slices.Sort(names); !slices.Equal(got, names) {
			t.Errorf("%s: %v, want %v", when, got, names)
		}
	}
	start(pod, "a", 0)
	start(other, "z", 0)
	start(pod, "b", 1, "a")
	want("after a restart", "a", "b", "z")
	start(pod, "d", 2) // the others have been removed from the runtime
	want("after others' removal", "d", "z")
	if err := o.sweepLogLinks(pod, nil); err != nil {
		t.Fatal(err)
	}
	want("when the pod is forgotten", "z")
}
