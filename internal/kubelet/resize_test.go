package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// resize does what the API server does.
func (w *world) resize(name, cpu string) {
	w.t.Helper()
	p := w.get(name)
	p.Generation++
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func resizeReason(p *v1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			return string(c.Type) + " " + c.Reason
		}
	}
	return ""
}

func (w *world) sized(name, cpu string) {
	p := plainPod(name, v1.RestartPolicyAlways, container("c"))
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	w.create(p)
	w.until(name+" is ready", func() bool { return condition(w.get(name), v1.PodReady) == v1.ConditionTrue })
}

// free returns what pods with these requests leave of the node's CPU.
func (w *world) free(millis ...int64) string {
	have := w.k.node.Node().Status.Allocatable.Cpu().MilliValue()
	for _, m := range millis {
		have -= m
	}
	return resource.NewMilliQuantity(have, resource.DecimalSI).String()
}

func (w *world) actual(name string) string {
	return w.status(name, "c").Resources.Requests.Cpu().String()
}

// TestResizeIsAppliedDeferredAndRetried: free room is used at once, including by a pod that was
// deferred before the kubelet restarted.
func TestResizeIsAppliedDeferredAndRetried(t *testing.T) {
	run(t, func(w *world) {
		w.sized("a", "100m")
		w.sized("b", "100m")
		w.resize("a", "200m")
		w.until("a has more", func() bool { return w.actual("a") == "200m" && resizeReason(w.get("a")) == "" })
		if c := w.status("a", "c"); c.RestartCount != 0 || w.rt.Calls("UpdateContainerResources") == 0 {
			t.Errorf("not in place: %+v", c)
		}
		w.wantEvent("ResizeStarted: Pod resize started: {")
		w.wantEvent("ResizeCompleted: Pod resize completed: {")
		w.resize("a", w.free(50))
		w.until("a waits", func() bool { return resizeReason(w.get("a")) == "PodResizePending Deferred" })
		w.resize("b", w.free(-1))
		w.until("b cannot", func() bool { return resizeReason(w.get("b")) == "PodResizePending Infeasible" })
		w.stop()
		w.start()
		w.pass(time.Second)
		if got := resizeReason(w.get("a")); got != "PodResizePending Deferred" || w.actual("a") != "200m" {
			t.Errorf("after a restart: %s, %s", got, w.actual("a"))
		}
		w.remove("b", 1)
		w.until("b is gone", func() bool { return w.gone("b") })
		w.pass(time.Second)
		if got := resizeReason(w.get("a")); got != "" || w.actual("a") != w.free(50) {
			t.Errorf("with room: %s, %s", got, w.actual("a"))
		}
		deferred := 0
		for _, e := range w.events() {
			if strings.HasPrefix(e, "ResizeDeferred: Pod resize Deferred: {") {
				deferred++
			}
		}
		if deferred != 1 {
			t.Errorf("told %d times that a is deferred", deferred)
		}
	})
}

// TestResizeGoesByPriority: of two that wait, the more important one grows first.
func TestResizeGoesByPriority(t *testing.T) {
	run(t, func(w *world) {
		w.sized("filler", w.free(200))
		w.sized("low", "100m")
		p := plainPod("high", v1.RestartPolicyAlways, container("c"))
		p.Spec.Priority = ptr.To[int32](1000)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
		w.create(p)
		w.until("high is ready", func() bool { return condition(w.get("high"), v1.PodReady) == v1.ConditionTrue })
		half := w.free(0)
		q := resource.MustParse(half)
		want := resource.NewMilliQuantity(q.MilliValue()*6/10, resource.DecimalSI).String()
		for _, name := range []string{"low", "high"} {
			w.resize(name, want)
			w.until(name+" waits", func() bool { return resizeReason(w.get(name)) == "PodResizePending Deferred" })
		}
		w.remove("filler", 1)
		w.until("filler is gone", func() bool { return w.gone("filler") })
		w.pass(time.Second)
		if w.actual("high") != want || resizeReason(w.get("low")) != "PodResizePending Deferred" {
			t.Errorf("high has %s, low %s", w.actual("high"), resizeReason(w.get("low")))
		}
	})
}

func TestUpdateThatNeedsAFeatureWhichTheNodeLacksIsTold(t *testing.T) {
	run(t, func(w *world) {
		pod := plainPod("a", v1.RestartPolicyAlways, container("c"))
		memory := &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}
		pod.Spec.Volumes = []v1.Volume{{Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: memory}}}
		w.create(pod)
		w.until("it is ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.resize("a", "20m") // which every node can do
		w.pass(time.Second)
		update := w.get("a")
		update.Spec.Volumes[0].EmptyDir.SizeLimit = new(resource.MustParse("2Mi"))
		if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), update, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		var told []string
		for _, e := range w.told {
			if strings.HasPrefix(e, "FailedNodeDeclaredFeaturesCheck") {
				told = append(told, e)
			}
		}
		want := "FailedNodeDeclaredFeaturesCheck: Pod requires node features that are not available: InPlacePodVerticalScalingMemoryBackedVolumes"
		if len(told) != 1 || told[0] != want {
			t.Errorf("%q", told)
		}
	})
}

// A downward API volume used to keep showing what a container had before it was resized.
func TestDownwardVolumeFollowsAResize(t *testing.T) {
	run(t, func(w *world) {
		p := plainPod("a", v1.RestartPolicyAlways, container("c"))
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
		p.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			DefaultMode: ptr.To[int32](0o644),
			Items: []v1.DownwardAPIVolumeFile{{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{
				ContainerName: "c", Resource: "requests.cpu", Divisor: resource.MustParse("1m"),
			}}},
		}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "d", MountPath: "/d"}}
		w.create(p)
		w.until("ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		told := func() string {
			got, err := os.ReadFile(filepath.Join(w.k.dirs.Pods(), "uid-a", "volumes", "kubernetes.io~downward-api", "d", "cpu"))
			if err != nil {
				t.Fatal(err)
			}
			return string(got)
		}
		if got := told(); got != "100" {
			t.Errorf("at first: %q", got)
		}
		w.resize("a", "200m")
		w.until("it has more", func() bool { return w.actual("a") == "200m" })
		w.pass(time.Second)
		if got := told(); got != "200" {
			w.dump()
			t.Errorf("after the resize: %q", got)
		}
	})
}
