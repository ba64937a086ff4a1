package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/podsource"
	"wherry.dev/test/fakecri"
)

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "busybox:latest", imagePullPolicy: IfNotPresent, command: [sleep, "NUM"]}
`

// Static pods are driven through the source's callback: inotify does not work in virtual time.
// The tests of podsource cover the directory.
func static(t *testing.T, num string) *v1.Pod {
	t.Helper()
	p, err := podsource.StaticPod([]byte(strings.Replace(manifest, "NUM", num, 1)), "n1", "file:/m/web.yaml", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStaticPodAndItsMirror(t *testing.T) {
	run(t, func(w *world) {
		one := static(t, "1")
		w.k.setStaticPods("file", []*v1.Pod{one})
		w.until("mirror Running", func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning })
		m := w.get("web-n1")
		hash := m.Annotations["kubernetes.io/config.hash"]
		if hash == "" || m.Annotations["kubernetes.io/config.mirror"] != hash || m.Annotations["kubernetes.io/config.source"] != "file" ||
			m.Annotations["kubernetes.io/config.seen"] == "" || len(m.OwnerReferences) != 1 {
			t.Fatalf("mirror: %+v", m.ObjectMeta)
		}
		if o := m.OwnerReferences[0]; o.APIVersion != "v1" || o.Kind != "Node" || o.Name != "n1" || o.UID != w.k.node.Node().UID || !*o.Controller {
			t.Errorf("owner: %+v", o)
		}
		if all := (v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}); !slices.Contains(m.Spec.Tolerations, all) {
			t.Errorf("tolerations: %+v", m.Spec.Tolerations)
		}
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		if err := w.client.CoreV1().Pods("default").Delete(t.Context(), m.Name, now); err != nil { // somebody deletes it
			t.Fatal(err)
		}
		w.until("mirror is back", func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning })
		m = w.get("web-n1")
		w.remove("web-n1", 30) // or asks it to go
		w.until("another mirror", func() bool {
			return !w.gone("web-n1") && w.get("web-n1").UID != m.UID && w.get("web-n1").Status.Phase == v1.PodRunning
		})
		if w.rt.Calls("CreateContainer") != 1 {
			t.Error("the deletion of the mirror touched the pod")
		}
		two := static(t, "2")
		if one.UID == two.UID {
			t.Fatal("the UID does not follow the content")
		}
		w.k.setStaticPods("file", []*v1.Pod{two})
		w.until("replaced", func() bool {
			return !w.gone("web-n1") && w.get("web-n1").Annotations["kubernetes.io/config.hash"] != hash &&
				w.get("web-n1").Status.Phase == v1.PodRunning && len(w.rt.Live(string(one.UID), "")) == 0
		})
		w.k.setStaticPods("file", nil)
		w.until("gone", func() bool { return w.gone("web-n1") && w.rt.Sandboxes() == 0 })
	})
}

// A manifest that is put back while its pod is being torn down is the same pod once more. It used
// to be left dead.
func TestAStaticPodThatIsPutBackRunsAgain(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Behave = func(*runtimeapi.ContainerConfig) fakecri.Behaviour { return fakecri.Behaviour{IgnoreTerm: true} }
		running := func() bool {
			return len(w.rt.Live("", "c")) == 1 && !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning
		}
		w.k.setStaticPods("file", []*v1.Pod{static(t, "1")})
		w.until("running", running)
		first := w.rt.Live("", "c")[0]
		w.k.setStaticPods("file", nil)
		w.pass(time.Second / 2)
		w.k.setStaticPods("file", []*v1.Pod{static(t, "1")})
		w.until("runs again", func() bool { return running() && w.rt.Live("", "c")[0] != first })
		if n := w.get("web-n1").Status.ContainerStatuses[0].RestartCount; n != 1 {
			t.Errorf("it was restarted %d times", n)
		}
		second := w.rt.Live("", "c")[0]
		w.k.setStaticPods("file", nil)
		w.k.setStaticPods("file", []*v1.Pod{static(t, "1")}) // within a moment
		w.until("runs again at once", func() bool { return running() && w.rt.Live("", "c")[0] != second })
		second = w.rt.Live("", "c")[0]
		w.until("it was restarted twice", func() bool { return w.get("web-n1").Status.ContainerStatuses[0].RestartCount == 2 })
		w.k.setStaticPods("file", nil)
		w.pass(time.Second / 2)
		w.stop() // and while the kubelet is down
		w.start()
		w.k.setStaticPods("file", []*v1.Pod{static(t, "1")})
		w.until("runs a third time", func() bool { return running() && w.rt.Live("", "c")[0] != second })
	})
}

// TestARestartLeavesStaticPodsAlone, and their mirrors. A manifest that was changed meanwhile is
// another pod, which starts when the one of the same name has ended.
func TestARestartLeavesStaticPodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.prepare = func(k *Kubelet) { k.sources = podsource.Await(fromStart, fromFile, fromAPI) }
		old := static(t, "1")
		w.startWith(old)
		running := func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning }
		w.until("running", running)
		mirror := w.get("web-n1").UID
		w.stop()
		w.startWith(static(t, "1"))
		w.pass(time.Hour)
		if w.rt.Calls("CreateContainer") != 1 || w.rt.Calls("StopContainer") != 0 || w.get("web-n1").UID != mirror {
			t.Errorf("the restart touched the pod, or its mirror: %d made, %d stopped, mirror %s, was %s", w.rt.Calls("CreateContainer"), w.rt.Calls("StopContainer"), w.get("web-n1").UID, mirror)
		}
		w.rt.Behave = func(*runtimeapi.ContainerConfig) fakecri.Behaviour { return fakecri.Behaviour{IgnoreTerm: true} }
		w.stop()
		w.startWith(static(t, "2"))
		w.until("replaced", func() bool {
			live := len(w.rt.Live("", "c"))
			if live > 1 {
				t.Fatal("both run")
			}
			return live == 1 && len(w.rt.Live(string(old.UID), "c")) == 0 && running() && w.get("web-n1").UID != mirror
		})
		w.stop()
	})
}

// A kubelet that starts again knows how ready the containers of static pods were from the pods' mirrors. It used to report them as
// not started, until their probes had answered again.
func TestRestartLeavesStaticPodsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.prepare = func(k *Kubelet) { k.sources = podsource.Await(fromStart, fromFile, fromAPI) }
		w.rt.Exec = func(string, []string) ([]byte, int, error) { return nil, 0, nil }
		probed := func() *v1.Pod {
			pod := static(t, "1")
			probe := &v1.Probe{
				ProbeHandler:        v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}},
				InitialDelaySeconds: 20, PeriodSeconds: 10, FailureThreshold: 3, SuccessThreshold: 1, TimeoutSeconds: 1,
			}
			pod.Spec.Containers[0].StartupProbe, pod.Spec.Containers[0].ReadinessProbe = probe, probe
			return pod
		}
		w.startWith(probed())
		w.until("ready", func() bool { return !w.gone("web-n1") && condition(w.get("web-n1"), v1.PodReady) == v1.ConditionTrue })
		w.stop()
		w.client.ClearActions()
		w.startWith(probed())
		w.pass(time.Minute)
		for _, a := range w.client.Actions() {
			if p, ok := a.(clienttesting.PatchAction); ok && a.GetResource().Resource == "pods" {
				t.Errorf("after the restart it is told: %s", p.GetPatch())
			}
		}
		w.rt.Exec = func(string, []string) ([]byte, int, error) { return nil, 1, nil }
		w.until("not ready, when its probe says so", func() bool { return condition(w.get("web-n1"), v1.PodReady) == v1.ConditionFalse })
		w.stop()
	})
}

func TestStandaloneKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alone = true
		w.prepare = func(k *Kubelet) { k.sources = podsource.Await(fromStart, fromFile, fromAPI) }
		w.startWith(static(t, "1"))
		w.until("running", func() bool { return len(w.rt.Live("", "c")) == 1 })
		w.stop()
		w.startWith(static(t, "1"))
		w.pass(time.Minute)
		if w.rt.Calls("CreateContainer") != 1 {
			t.Error("the restart touched the pod")
		}
		w.k.setStaticPods("file", nil)
		w.until("gone", func() bool { return w.rt.Sandboxes() == 0 })
		w.stop()
	})
}

// startWith starts a kubelet whose directory of manifests has one pod.
func (w *world) startWith(pod *v1.Pod) {
	w.begin()
	synctest.Wait()
	w.k.setStaticPods("file", []*v1.Pod{pod})
	synctest.Wait()
}

// TestStaticPodsOfTwoSources: what one source no longer has is not taken from the other.
func TestStaticPodsOfTwoSources(t *testing.T) {
	run(t, func(w *world) {
		file, other := static(t, "1"), static(t, "2")
		other.Name = "other-n1"
		w.k.setStaticPods("file", []*v1.Pod{file})
		w.k.setStaticPods("http", []*v1.Pod{other})
		w.until("both run", func() bool { return len(w.rt.Live("", "c")) == 2 })
		w.k.setStaticPods("http", nil)
		w.until("one runs", func() bool { return len(w.rt.Live("", "c")) == 1 })
		w.pass(time.Minute)
		if len(w.rt.Live(string(file.UID), "c")) != 1 || w.gone("web-n1") {
			t.Error("the wrong one")
		}
		w.k.setStaticPods("file", nil)
		w.until("none runs", func() bool { return w.rt.Sandboxes() == 0 })
	})
}

// TestARefusedStaticPodIsAskedForAgain by the next kubelet: nothing else recreates it.
func TestARefusedStaticPodIsAskedForAgain(t *testing.T) {
	run(t, func(w *world) {
		pod := static(t, "1")
		w.k.conditions.GoingDown.Store(true)
		w.k.setStaticPods("file", []*v1.Pod{pod})
		w.until("it is refused", func() bool {
			p := w.get("web-n1")
			return p.Status.Phase == v1.PodFailed && p.Status.Reason == "NodeShutdown"
		})
		w.stop()
		w.start()
		w.k.setStaticPods("file", []*v1.Pod{pod})
		w.until("it runs", func() bool { return w.get("web-n1").Status.Phase == v1.PodRunning })
		if st := w.get("web-n1").Status; st.Reason != "" || st.Message != "" {
			t.Errorf("%+v", st)
		}
	})
}

// TestABadManifestStopsNothingAndIsTold: what runs stays, even after the next look at the
// directory, and an event says which file, which field, and what to do.
func TestABadManifestStopsNothingAndIsTold(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	file, other := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "other.yaml")
	w.cfg.StaticPodPath, w.cfg.FileCheckFrequency.Duration = dir, 5*time.Millisecond
	good := strings.Replace(manifest, "NUM", "1000", 1)
	write := func(path, text string) {
		t.Helper()
		whole := filepath.Join(t.TempDir(), "manifest") // a half-written one would be reported, too
		if err := errors.Join(os.WriteFile(whole, []byte(text), 0o600), os.Rename(whole, path)); err != nil {
			t.Fatal(err)
		}
	}
	write(file, good)
	w.launch()
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				w.mu.Lock()
				defer w.mu.Unlock()
				t.Fatalf("never: %s; events %q", what, w.told)
			}
		}
	}
	told := func(text string) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, e := range w.told {
			if strings.HasPrefix(e, "FailedValidation: Static pod manifest "+text) {
				n++
			}
		}
		return n
	}
	eventually("it runs", func() bool { return w.rt.Containers() == 1 })
	write(file, strings.Replace(good, "image:", "imag:", 1))
	write(other, "kind: Pod")
	eventually("events", func() bool {
		return told(file+" cannot be used: invalid pod: spec.containers[0].image: Required value. The pod keeps running as it was; fix the file, or remove it to stop the pod") == 1 &&
			told(other+" cannot be used: couldn't parse as pod(") == 1
	})
	write(filepath.Join(dir, "more.yaml"), strings.Replace(good, "name: web", "name: more", 1))
	eventually("the folder is looked at again, and nothing stops", func() bool { return w.rt.Containers() == 2 })
	if n := told(""); n != 2 {
		t.Errorf("%d events", n)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually("a removed manifest stops its pod", func() bool { return w.rt.Containers() == 1 })
	w.stop()
}

// TestAStaticPodRunsWhileTheAPIServerIsDown, and shows up once the server is back.
func TestAStaticPodRunsWhileTheAPIServerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var down atomic.Bool
		down.Store(true)
		w.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("connection refused")
		})
		w.client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return down.Load(), nil, errors.New("connection refused")
		})
		w.begin()
		synctest.Wait()
		w.k.setStaticPods("file", []*v1.Pod{static(t, "1")})
		w.pass(time.Second)
		if len(w.rt.Live("", "c")) != 1 {
			t.Error("it waits for the API server")
		}
		down.Store(false)
		w.until("shown", func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning })
		w.stop()
	})
}
