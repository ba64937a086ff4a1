package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/fakecri"
)

// behave makes each container behave as configured under its name.
func (w *world) behave(by map[string]fakecri.Behaviour) {
	w.rt.Behave = func(cfg *runtimeapi.ContainerConfig) fakecri.Behaviour { return by[cfg.Metadata.Name] }
}

func container(name string) v1.Container {
	return v1.Container{Name: name, Image: "busybox:latest", ImagePullPolicy: v1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log"}
}

func plainPod(name string, policy v1.RestartPolicy, containers ...v1.Container) *v1.Pod {
	p := testPod(name)
	p.Spec.RestartPolicy, p.Spec.Volumes = policy, nil
	p.Spec.Containers = containers
	return p
}

func (w *world) status(name, container string) v1.ContainerStatus {
	p := w.get(name)
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			if c.Name == container {
				return c
			}
		}
	}
	return v1.ContainerStatus{}
}

func waiting(c v1.ContainerStatus) string {
	if c.State.Waiting == nil {
		return ""
	}
	return c.State.Waiting.Reason
}

func (w *world) events() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

func (w *world) wantEvent(text string) {
	w.t.Helper()
	if !slices.ContainsFunc(w.events(), func(e string) bool { return strings.Contains(e, text) }) {
		w.t.Errorf("no event with %q among\n%s", text, strings.Join(w.events(), "\n"))
	}
}

func TestCrashLoopBacksOff(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"c": {RunFor: time.Second, ExitCode: 1}})
		began := time.Now()
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
		// Each run lasts a second; the waits in between are 0, 10, 20, 40, 80, 160, 300, 300.
		for i, at := range []time.Duration{1, 12, 33, 74, 155, 316, 617, 918} {
			w.pass(time.Until(began.Add(at*time.Second + 500*time.Millisecond)))
			if got := w.status("a", "c").RestartCount; int(got) != i+1 {
				w.dump()
				t.Fatalf("after %ds: %d restarts, want %d", at, got, i+1)
			}
		}
		w.pass(5 * time.Second)
		c := w.status("a", "c")
		if waiting(c) != "CrashLoopBackOff" || c.State.Waiting.Message != "back-off 5m0s restarting failed container=c pod=a_default(uid-a)" {
			t.Errorf("waiting: %+v", c.State.Waiting)
		}
		if c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 1 {
			t.Errorf("last state: %+v", c.LastTerminationState)
		}
		if p := w.get("a"); p.Status.Phase != v1.PodRunning {
			t.Errorf("phase %s", p.Status.Phase)
		}
		w.wantEvent("BackOff: Back-off restarting failed container c in pod a_default(uid-a)")
		if n := w.rt.Containers(); n > 2 {
			t.Errorf("%d containers are kept", n)
		}
	})
}

func TestRestartCountSurvivesTheKubelet(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"c": {RunFor: time.Second, ExitCode: 1}})
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
		w.pass(15 * time.Second)
		before := w.status("a", "c").RestartCount
		w.stop()
		w.start()
		w.pass(5 * time.Second)
		if got := w.status("a", "c").RestartCount; got != before || before != 2 {
			t.Errorf("restarts: %d before, %d after", before, got)
		}
		w.pass(15 * time.Second)
		if got := w.status("a", "c").RestartCount; got != 3 {
			t.Errorf("the back-off was forgotten or began anew: %d restarts", got)
		}
	})
}

func TestTerminalPhases(t *testing.T) {
	for name, tc := range map[string]struct {
		policy v1.RestartPolicy
		code   int32
		phase  v1.PodPhase
		reason string
	}{
		"never ok":     {v1.RestartPolicyNever, 0, v1.PodSucceeded, "Completed"},
		"never fails":  {v1.RestartPolicyNever, 3, v1.PodFailed, "Error"},
		"on failure":   {v1.RestartPolicyOnFailure, 0, v1.PodSucceeded, "Completed"},
		"always again": {v1.RestartPolicyAlways, 0, v1.PodRunning, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.behave(map[string]fakecri.Behaviour{"c": {RunFor: time.Second, ExitCode: tc.code}})
				w.create(plainPod("a", tc.policy, container("c")))
				w.pass(10 * time.Second)
				p := w.get("a")
				if p.Status.Phase != tc.phase {
					w.dump()
					t.Fatalf("phase %s, want %s", p.Status.Phase, tc.phase)
				}
				if tc.reason == "" {
					return
				}
				if got := p.Status.ContainerStatuses[0].State.Terminated; got == nil || got.Reason != tc.reason || got.ExitCode != tc.code {
					t.Errorf("state: %+v", p.Status.ContainerStatuses[0].State)
				}
				if len(w.rt.Live("", "")) > 0 || w.rt.Containers() != 1 {
					t.Errorf("live %v of %d", w.rt.Live("", ""), w.rt.Containers())
				}
				w.stop()
				w.start()
				w.pass(time.Minute)
				if got := w.get("a").Status; got.Phase != tc.phase || w.rt.Calls("CreateContainer") != 1 {
					t.Errorf("after a restart of the kubelet: %s, %d containers made", got.Phase, w.rt.Calls("CreateContainer"))
				}
				w.remove("a", 0)
				w.until("gone", func() bool { return w.gone("a") && w.rt.Sandboxes() == 0 })
			})
		})
	}
}

func TestInitContainersAndSidecars(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"i1": {RunFor: 2 * time.Second}, "i2": {RunFor: 2 * time.Second}, "c": {RunFor: 10 * time.Second}})
		side1, side2 := container("s1"), container("s2")
		side1.RestartPolicy, side2.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways), ptr.To(v1.ContainerRestartPolicyAlways)
		pod := plainPod("a", v1.RestartPolicyNever, container("c"))
		pod.Spec.InitContainers = []v1.Container{container("i1"), side1, container("i2"), side2}
		var mu sync.Mutex
		var order []string
		w.rt.Fail = func(call, what string) error {
			mu.Lock()
			defer mu.Unlock()
			if call == "CreateContainer" {
				order = append(order, what)
			}
			if call == "StopContainer" {
				order = append(order, "stop "+w.rt.Config(what).Metadata.Name)
			}
			return nil
		}
		w.create(pod)
		w.pass(time.Second)
		if c := w.status("a", "c"); waiting(c) != "PodInitializing" {
			t.Errorf("c is %+v", c.State)
		}
		if p := w.get("a"); p.Status.Phase != v1.PodPending || condition(p, v1.PodInitialized) != v1.ConditionFalse {
			t.Errorf("phase %s, initialized %s", p.Status.Phase, condition(p, v1.PodInitialized))
		}
		w.pass(4 * time.Second)
		if p := w.get("a"); p.Status.Phase != v1.PodRunning || condition(p, v1.PodReady) != v1.ConditionTrue {
			w.dump()
			t.Fatalf("phase %s", p.Status.Phase)
		}
		w.until("Succeeded", func() bool { return w.get("a").Status.Phase == v1.PodSucceeded })
		if got, want := strings.Join(order, ","), "i1,s1,i2,s2,c,stop s2,stop s1"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
	})
}

func TestInitFailure(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"i": {RunFor: time.Second, ExitCode: 2}})
		never := plainPod("never", v1.RestartPolicyNever, container("c"))
		always := plainPod("always", v1.RestartPolicyAlways, container("c"))
		for _, p := range []*v1.Pod{never, always} {
			p.Spec.InitContainers = []v1.Container{container("i")}
			w.create(p)
		}
		w.pass(30 * time.Second)
		if p := w.get("never"); p.Status.Phase != v1.PodFailed || waiting(w.status("never", "c")) != "PodInitializing" {
			t.Errorf("never: %s %+v", p.Status.Phase, w.status("never", "c").State)
		}
		if p := w.get("always"); p.Status.Phase != v1.PodPending || waiting(w.status("always", "i")) != "CrashLoopBackOff" {
			t.Errorf("always: %s %+v", p.Status.Phase, w.status("always", "i").State)
		}
	})
}

func TestImageThatComesLater(t *testing.T) {
	run(t, func(w *world) {
		c := container("c")
		c.Image = "late:v1"
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		w.pass(time.Second)
		if s := w.status("a", "c"); waiting(s) != "ErrImagePull" || !strings.Contains(s.State.Waiting.Message, "not found") {
			t.Errorf("%+v", s.State)
		}
		w.pass(5 * time.Second)
		if s := w.status("a", "c"); waiting(s) != "ImagePullBackOff" || !strings.HasPrefix(s.State.Waiting.Message, `Back-off pulling image "late:v1": ErrImagePull: `) {
			t.Errorf("%+v", s.State)
		}
		w.wantEvent(`Failed: Failed to pull image "late:v1"`)
		w.wantEvent("Failed: Error: ErrImagePull")
		w.wantEvent(`BackOff: Back-off pulling image "late:v1"`)
		w.pass(10 * time.Minute)
		if n := w.rt.Calls("PullImage"); n < 4 || n > 8 {
			t.Errorf("%d pulls in ten minutes", n)
		}
		w.rt.AddImage("late:v1") // imported, not pulled
		w.pass(6 * time.Second)
		if p := w.get("a"); p.Status.Phase != v1.PodRunning {
			w.dump()
			t.Errorf("phase %s", p.Status.Phase)
		}
	})
}

func TestImageNeverPull(t *testing.T) {
	run(t, func(w *world) {
		c := container("c")
		c.Image, c.ImagePullPolicy = "late:v1", v1.PullNever
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		w.pass(10 * time.Second)
		if s := w.status("a", "c"); waiting(s) != "ErrImageNeverPull" {
			t.Errorf("%+v", s.State)
		}
		w.wantEvent("ErrImageNeverPull: Container image \"late:v1\" is not present with pull policy of Never")
		w.wantEvent("Failed: Error: ErrImageNeverPull")
		if w.rt.Calls("PullImage") != 0 {
			t.Error("it was pulled")
		}
	})
}

func TestDeletionCancelsAPull(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Publish("big:v1")
		w.rt.Delay = func(call string) time.Duration {
			if call == "PullImage" {
				return time.Hour
			}
			return 0
		}
		c := container("c")
		c.Image = "big:v1"
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		w.pass(time.Minute)
		w.remove("a", 30)
		w.pass(time.Second)
		if !w.gone("a") {
			w.dump()
			t.Error("a pod hangs behind its pull")
		}
	})
}

func TestGracePeriod(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"c": {IgnoreTerm: true}})
		for _, name := range []string{"a", "b", "f"} {
			w.create(plainPod(name, v1.RestartPolicyAlways, container("c")))
		}
		w.pass(time.Second)
		for _, name := range []string{"a", "b", "f"} {
			w.remove(name, 30)
		}
		w.pass(10 * time.Second)
		w.remove("b", 12) // a second deletion shortens the grace period
		if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "f", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err) // a forced one
		}
		w.pass(3 * time.Second)
		if w.gone("a") || !w.gone("b") || len(w.rt.Live("uid-f", "")) > 0 {
			w.dump()
			t.Errorf("after 13 s: a gone %v, b gone %v, f live %v", w.gone("a"), w.gone("b"), w.rt.Live("uid-f", ""))
		}
		w.pass(18 * time.Second)
		if !w.gone("a") {
			t.Error("a is not gone after its grace period")
		}
	})
}

// Grace periods below two seconds used to be extended to two.
func TestShortGracePeriodIsNotProlonged(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"c": {IgnoreTerm: true}})
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
		w.pass(time.Second)
		w.remove("a", 1)
		w.pass(1500 * time.Millisecond)
		if !w.gone("a") {
			w.dump()
			t.Error("a is not gone after its grace period of 1 s")
		}
	})
}

func TestObjectsThatComeLater(t *testing.T) {
	run(t, func(w *world) {
		c := container("c")
		c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "env"}}}}
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		pod := plainPod("b", v1.RestartPolicyAlways, container("c"))
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}}
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
		w.create(pod)
		w.pass(20 * time.Second)
		if s := w.status("a", "c"); waiting(s) != "CreateContainerConfigError" || s.State.Waiting.Message != `configmap "env" not found` {
			t.Errorf("a: %+v", s.State.Waiting)
		}
		if s := w.status("b", "c"); waiting(s) != "ContainerCreating" {
			t.Errorf("b: %+v", s.State.Waiting)
		}
		w.wantEvent(`FailedMount: MountVolume.SetUp failed for volume "v" : secret "s" not found`)
		w.wantEvent(`Failed: Error: configmap "env" not found`)
		cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "env", UID: "e", ResourceVersion: "5"}, Data: map[string]string{"K": "v"}}
		if _, err := w.client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "s", ResourceVersion: "5"}, Data: map[string][]byte{"k": []byte("one")}}
		if _, err := w.client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(100 * time.Millisecond)
		for _, name := range []string{"a", "b"} {
			if w.get(name).Status.Phase != v1.PodRunning {
				w.dump()
				t.Fatalf("%s did not run at once when its object came", name)
			}
		}
		file := filepath.Join(w.k.dirs.Volumes("uid-b"), "kubernetes.io~secret", "v", "k")
		secret.Data["k"], secret.ResourceVersion = []byte("two"), "6"
		if _, err := w.client.CoreV1().Secrets("default").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(100 * time.Millisecond)
		if got, err := os.ReadFile(file); err != nil || string(got) != "two" {
			t.Errorf("the volume shows %q, %v", got, err)
		}
	})
}

func TestTokenIsRenewed(t *testing.T) {
	run(t, func(w *world) {
		w.create(testPod("a"))
		w.pass(time.Second)
		count := func() int {
			n := 0
			for _, a := range w.client.Actions() {
				if a.Matches("create", "serviceaccounts/token") {
					n++
				}
			}
			return n
		}
		if count() != 1 {
			t.Fatalf("%d token requests", count())
		}
		w.pass(47 * time.Minute)
		if count() != 1 {
			t.Errorf("renewed before 80%% of its life: %d", count())
		}
		w.pass(2 * time.Minute)
		if count() != 2 {
			t.Errorf("not renewed after 80%% of its life: %d", count())
		}
	})
}

func TestAdmission(t *testing.T) {
	run(t, func(w *world) {
		big := plainPod("big", v1.RestartPolicyAlways, container("c"))
		big.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("10000")}
		w.create(big)
		picky := plainPod("picky", v1.RestartPolicyAlways, container("c"))
		picky.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		w.create(picky)
		w.pass(time.Second)
		p := w.get("big")
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "OutOfcpu" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: Node didn't have enough resource: cpu, requested: 10000000, used: 0, capacity: ") {
			t.Errorf("big: %s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		if p := w.get("picky"); p.Status.Phase != v1.PodFailed || p.Status.Reason != "NodeAffinity" {
			t.Errorf("picky: %s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		if len(p.Status.ContainerStatuses) != 0 {
			t.Errorf("a refused pod has container statuses: %+v", p.Status.ContainerStatuses)
		}
		w.wantEvent("OutOfcpu: Node didn't have enough resource: cpu")
		if w.rt.Calls("RunPodSandbox") != 0 {
			t.Error("a refused pod got a sandbox")
		}
	})
}

// TestARefusalIsRecordedOnce: by one event, and by one status, even if the kubelet restarts and
// finds that there would be room now.
func TestARefusalIsRecordedOnce(t *testing.T) {
	run(t, func(w *world) {
		writes := 0
		w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			writes++
			return false, nil, nil
		})
		picky := plainPod("picky", v1.RestartPolicyAlways, container("c"))
		picky.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		w.create(picky)
		w.pass(time.Minute)
		before := w.get("picky").Status
		w.stop()
		w.cfg.NodeLabels = map[string]string{"disk": "ssd"}
		w.start()
		w.pass(time.Hour)
		if after := w.get("picky").Status; after.Phase != v1.PodFailed || after.Reason != "NodeAffinity" || !equality.Semantic.DeepEqual(before, after) {
			t.Errorf("%+v, was %+v", after, before)
		}
		told := 0
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.told {
			if e == "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector" {
				told++
			}
		}
		if told != 1 || writes != 1 || w.rt.Calls("RunPodSandbox") != 0 {
			t.Errorf("%d events, %d writes", told, writes)
		}
	})
}

func TestDeadline(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"c": {IgnoreTerm: true}})
		p := plainPod("a", v1.RestartPolicyAlways, container("c"))
		p.Spec.ActiveDeadlineSeconds, p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60), ptr.To[int64](5)
		w.create(p)
		w.pass(62 * time.Second)
		if got := w.get("a").Status; got.Phase != v1.PodRunning {
			t.Errorf("final status while it runs: %s", got.Phase)
		}
		w.pass(5 * time.Second)
		got := w.get("a").Status
		if got.Phase != v1.PodFailed || got.Reason != "DeadlineExceeded" || got.Message != "Pod was active on the node longer than the specified deadline" {
			w.dump()
			t.Errorf("%s %s %s", got.Phase, got.Reason, got.Message)
		}
		w.wantEvent("DeadlineExceeded")
	})
}

func TestSandboxThatDiesIsReplaced(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"i": {RunFor: time.Second}})
		p := plainPod("a", v1.RestartPolicyAlways, container("c"))
		p.Spec.InitContainers = []v1.Container{container("i")}
		w.create(p)
		w.pass(3 * time.Second)
		w.rt.KillSandbox(w.rt.SandboxIDs("uid-a")[0])
		w.pass(30 * time.Second)
		got := w.get("a")
		if got.Status.Phase != v1.PodRunning || condition(got, v1.PodReady) != v1.ConditionTrue {
			w.dump()
			t.Fatalf("phase %s", got.Status.Phase)
		}
		if w.status("a", "c").RestartCount != 1 || w.status("a", "i").RestartCount != 1 {
			t.Errorf("restarts: c %d, i %d", w.status("a", "c").RestartCount, w.status("a", "i").RestartCount)
		}
		w.wantEvent("SandboxChanged: Pod sandbox changed, it will be killed and re-created.")
	})
}

func TestErrorsOfTheRuntimeShow(t *testing.T) {
	run(t, func(w *world) {
		var mu sync.Mutex
		broken := map[string]bool{"CreateContainer": true}
		fix := func(now ...string) {
			mu.Lock()
			defer mu.Unlock()
			clear(broken)
			for _, c := range now {
				broken[c] = true
			}
		}
		w.rt.Fail = func(call, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if broken[call] {
				return errors.New(call + " is broken")
			}
			return nil
		}
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
		w.pass(5 * time.Second)
		if s := w.status("a", "c"); waiting(s) != "CreateContainerError" || s.State.Waiting.Message != "CreateContainer is broken" {
			t.Errorf("%+v", s.State.Waiting)
		}
		fix("StartContainer")
		w.until("RunContainerError", func() bool { return waiting(w.status("a", "c")) == "RunContainerError" })
		w.pass(15 * time.Second)
		if s := w.status("a", "c"); waiting(s) != "CrashLoopBackOff" || s.LastTerminationState.Terminated == nil ||
			s.LastTerminationState.Terminated.Reason != "StartError" || s.LastTerminationState.Terminated.Message != "StartContainer is broken" {
			w.dump()
			t.Errorf("%+v", s)
		}
		fix()
		w.pass(30 * time.Second)
		if w.get("a").Status.Phase != v1.PodRunning {
			w.dump()
			t.Errorf("it did not recover: %+v", w.get("a").Status)
		}
		fix("RunPodSandbox")
		w.create(plainPod("b", v1.RestartPolicyAlways, container("c")))
		w.pass(5 * time.Second)
		w.wantEvent("FailedCreatePodSandBox: Failed to create pod sandbox: RunPodSandbox is broken")
		fix()
		w.pass(20 * time.Second)
		if w.get("b").Status.Phase != v1.PodRunning {
			t.Error("b did not recover")
		}
	})
}

// A pod whose devices nobody prepares used to run without them.
func TestAPodDoesNotRunWithoutItsDevices(t *testing.T) {
	run(t, func(w *world) {
		p := plainPod("a", v1.RestartPolicyAlways, container("c"))
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("g")}}
		w.create(p)
		w.pass(time.Minute)
		w.wantEvent(`FailedPrepareDynamicResources: Failed to prepare dynamic resources: fetch ResourceClaim g: resourceclaims.resource.k8s.io "g" not found`)
		if st := w.get("a").Status; st.Phase != v1.PodPending || waiting(w.status("a", "c")) != "ContainerCreating" {
			t.Errorf("%+v", st)
		}
		p = plainPod("b", v1.RestartPolicyAlways, container("c"))
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu"}} // it turned out that none is needed
		w.create(p)
		w.pass(time.Minute)
		if w.get("b").Status.Phase != v1.PodRunning {
			t.Errorf("%+v", w.get("b").Status)
		}
	})
}

func TestImageChangeReplacesTheContainer(t *testing.T) {
	run(t, func(w *world) {
		w.rt.AddImage("busybox:2")
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c"), container("d")))
		w.pass(time.Second)
		p := w.get("a")
		p.Spec.Containers[0].Image, p.Generation = "busybox:2", 2
		if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.wantEvent("Killing: Container c definition changed, will be restarted")
		c, d := w.status("a", "c"), w.status("a", "d")
		if c.RestartCount != 1 || c.State.Running == nil || d.RestartCount != 0 || w.get("a").Status.ObservedGeneration != 2 {
			w.dump()
			t.Errorf("c: %+v, d: %+v", c, d)
		}
		if got := w.rt.Config(strings.TrimPrefix(c.ContainerID, "fake://")); got.Image.UserSpecifiedImage != "busybox:2" {
			t.Errorf("it runs %+v", got.Image)
		}
	})
}

func TestEviction(t *testing.T) {
	run(t, func(w *world) {
		w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
		w.pass(time.Second)
		w.k.table.Evict("uid-a", podplan.Ending{
			Since: time.Now(), Reason: "Evicted", Message: "The node was low on resource: memory.", Grace: ptr.To[int64](1),
			Disruption: v1.PodReasonTerminationByKubelet,
		})
		w.pass(5 * time.Second)
		p := w.get("a")
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" || condition(p, v1.DisruptionTarget) != v1.ConditionTrue {
			w.dump()
			t.Errorf("%+v", p.Status)
		}
		w.stop()
		w.start()
		w.pass(time.Minute)
		if w.rt.Calls("CreateContainer") != 1 || w.get("a").Status.Reason != "Evicted" {
			t.Error("the eviction was forgotten")
		}
	})
}

// A pod's last status, written while it was being forgotten, used to come back as an update and to
// have its objects watched for ever.
func TestNothingIsWatchedForAPodThatIsGone(t *testing.T) {
	run(t, func(w *world) {
		var mu sync.Mutex
		var watches []*watch.FakeWatcher
		w.client.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
			mu.Lock()
			defer mu.Unlock()
			watches = append(watches, watch.NewFake())
			return true, watches[len(watches)-1], nil
		})
		failures := 0
		w.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			last := strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `"phase":"Failed"`)
			if last && failures < 5 { // it is still on its way when everything else is done
				failures++
				return true, nil, errors.New("not now")
			}
			return false, nil, nil
		})
		pod := plainPod("p", v1.RestartPolicyAlways, container("c"))
		pod.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "missing"}, Optional: new(true),
		}}}
		w.create(pod)
		w.until("it runs", func() bool { return w.get("p").Status.Phase == v1.PodRunning })
		w.remove("p", 1)
		w.until("it is gone", func() bool { return w.gone("p") })
		w.pass(3 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(watches) == 0 {
			t.Error("nothing was watched")
		}
		for _, o := range watches {
			if !o.IsStopped() {
				t.Error("its config map is watched still")
			}
		}
	})
}
