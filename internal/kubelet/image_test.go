package kubelet

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/config"
)

const dockerConfig = `{"auths":{"registry.io":{"username":"u","password":"p"}}}`

func (w *world) pullSecret(name string) {
	w.t.Helper()
	s := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(dockerConfig)},
	}
	if _, err := w.client.CoreV1().Secrets("default").Create(w.t.Context(), s, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// private returns a pod whose image is pulled with a secret, or with none.
func private(name, secret string, policy v1.PullPolicy) *v1.Pod {
	c := container("c")
	c.Image, c.ImagePullPolicy = "registry.io/private:1", policy
	p := plainPod(name, v1.RestartPolicyAlways, c)
	if secret != "" {
		p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: secret}}
	}
	return p
}

// TestImagesOfOthersWantCredentials: a pod must not get an image that another pod's secret pulled
// just by asking for it, even after a restart of the kubelet.
func TestImagesOfOthersWantCredentials(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Publish("registry.io/private:1")
		w.pullSecret("mine")
		w.pullSecret("same-content")
		ready := func(name string) func() bool {
			return func() bool { return condition(w.get(name), v1.PodReady) == v1.ConditionTrue }
		}
		w.create(private("a", "mine", v1.PullIfNotPresent))
		w.until("a is ready", ready("a"))
		w.stop()
		w.start()
		w.create(private("b", "same-content", v1.PullIfNotPresent))
		w.until("b is ready", ready("b"))
		if n := w.rt.Calls("PullImage"); n != 1 {
			t.Errorf("%d pulls for two pods with the same credentials", n)
		}
		w.create(private("never", "", v1.PullNever))
		w.until("never is refused", func() bool { return waiting(w.status("never", "c")) == "ErrImageNeverPull" })
		w.create(private("c", "", v1.PullIfNotPresent))
		w.until("c is ready", ready("c"))
		if n := w.rt.Calls("PullImage"); n != 2 {
			t.Errorf("%d pulls after a pod without credentials", n)
		}
	})
}

// TestEventsOfPulls checks the events that people and dashboards look for.
func TestEventsOfPulls(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Publish("registry.io/c:1")
		w.rt.Delay = func(call string) time.Duration {
			if call == "PullImage" {
				return 1500 * time.Millisecond
			}
			return 0
		}
		for _, name := range []string{"a", "b"} {
			c := container("c")
			c.Image = "registry.io/c:1"
			w.create(plainPod(name, v1.RestartPolicyAlways, c))
			w.until("ready", func() bool { return condition(w.get(name), v1.PodReady) == v1.ConditionTrue })
		}
		bad := container("c")
		bad.Image = "Not An Image"
		w.create(plainPod("bad", v1.RestartPolicyAlways, bad))
		w.until("refused", func() bool { return waiting(w.status("bad", "c")) == "InvalidImageName" })
		w.wantEvent(`Pulling: Pulling image "registry.io/c:1"`)
		w.wantEvent(`Pulled: Successfully pulled image "registry.io/c:1" in 1.5s (1.5s including waiting). Image size: `)
		w.wantEvent(`Pulled: Container image "registry.io/c:1" already present on machine and can be accessed by the pod`)
		w.wantEvent(`InspectFailed: Failed to apply default image tag "Not An Image": couldn't parse image name "Not An Image": `)
		w.wantEvent("Failed: Error: InvalidImageName")
	})
}

// TestLostPullSecrets: a pull may succeed without them.
func TestLostPullSecrets(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Publish("registry.io/private:1")
		p := private("a", "lost", v1.PullAlways)
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{}, v1.LocalObjectReference{Name: "gone"})
		w.create(p)
		w.until("ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.wantEvent("FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (lost, gone); attempting to pull the image may not succeed.")
	})
}

// TestReasonsOfFailedPulls checks the reasons that a runtime gives in the CRI's own words.
func TestReasonsOfFailedPulls(t *testing.T) {
	for text, want := range map[string]string{
		"RegistryUnavailable: refused":        "image pull failed for registry.io/c:1 because the registry is unavailable: refused",
		"SignatureValidationFailed: not ours": "image pull failed for registry.io/c:1 because the signature validation failed: not ours",
		"no such host":                        "no such host",
	} {
		run(t, func(w *world) {
			w.rt.Fail = func(call, _ string) error {
				if call == "PullImage" {
					return errors.New(text)
				}
				return nil
			}
			c := container("c")
			c.Image = "registry.io/c:1"
			w.create(plainPod("a", v1.RestartPolicyAlways, c))
			w.pass(time.Second)
			reason, _, found := strings.Cut(text, ":")
			if !found {
				reason = "ErrImagePull"
			}
			if s := w.status("a", "c").State.Waiting; s == nil || s.Reason != reason || s.Message != want {
				t.Errorf("%s: %+v", text, s)
			}
			w.pass(4 * time.Second)
			if s := w.status("a", "c").State.Waiting; s == nil || s.Reason != "ImagePullBackOff" || s.Message != `Back-off pulling image "registry.io/c:1": `+reason+": "+want {
				t.Errorf("%s, backed off: %+v", text, s)
			}
			w.wantEvent("Failed: Error: " + reason)
		})
	}
}

// TestPullsBeyondTheRateAreRefused, and retried.
func TestPullsBeyondTheRateAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.RegistryPullQPS, w.cfg.RegistryBurst = ptr.To[int32](1), 1
		w.start()
		p := plainPod("a", v1.RestartPolicyAlways)
		for _, name := range []string{"a", "b"} {
			c := container(name)
			c.Image = "registry.io/" + name + ":1"
			w.rt.Publish(c.Image)
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		w.create(p)
		w.pass(100 * time.Millisecond)
		refused := 0
		for _, name := range []string{"a", "b"} {
			if c := w.status("a", name); waiting(c) == "ErrImagePull" && c.State.Waiting.Message == "pull QPS exceeded" {
				refused++
				w.wantEvent("Failed: Failed to pull image \"registry.io/" + name + ":1\": pull QPS exceeded")
			}
		}
		if n := w.rt.Calls("PullImage"); n != 1 || refused != 1 {
			t.Errorf("%d pulls, %d refused", n, refused)
		}
		w.until("ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.stop()
	})
}

// TestPullsTakeTurns if the configuration says so, within a pod and between pods.
func TestPullsTakeTurns(t *testing.T) {
	for most, cfg := range map[int]func(*config.Config){
		1: func(c *config.Config) { c.SerializeImagePulls = new(true) },
		2: func(c *config.Config) { c.SerializeImagePulls, c.MaxParallelImagePulls = new(false), ptr.To[int32](2) },
		4: func(*config.Config) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			cfg(&w.cfg)
			w.start()
			var mu sync.Mutex
			running, highest := 0, 0
			w.rt.Delay = func(call string) time.Duration {
				if call != "PullImage" {
					return 0
				}
				mu.Lock()
				defer mu.Unlock()
				running++
				highest = max(highest, running)
				time.AfterFunc(time.Second, func() { mu.Lock(); defer mu.Unlock(); running-- })
				return time.Second
			}
			began := time.Now()
			for _, pod := range []string{"p", "q"} {
				p := plainPod(pod, v1.RestartPolicyAlways)
				for _, name := range []string{"a", "b"} {
					c := container(name)
					c.Image = "registry.io/" + pod + name + ":1"
					w.rt.Publish(c.Image)
					p.Spec.Containers = append(p.Spec.Containers, c)
				}
				w.create(p)
			}
			w.until("ready", func() bool {
				return condition(w.get("p"), v1.PodReady) == v1.ConditionTrue && condition(w.get("q"), v1.PodReady) == v1.ConditionTrue
			})
			if took := time.Since(began).Truncate(time.Second); highest != most || took != time.Duration(4/most)*time.Second {
				t.Errorf("%d pulls at the same time, want %d; in %v", highest, most, took)
			}
			w.stop()
		})
	}
}

// An image may be garbage-collected between its pull and the retry of a failed create. The
// container then used to be never created, because nobody pulled the image again.
func TestAnImageThatIsCollectedBeforeItIsUsedIsPulledAgain(t *testing.T) {
	run(t, func(w *world) {
		first := true
		w.rt.Fail = func(call, _ string) error {
			if call != "CreateContainer" || !first {
				return nil
			}
			first = false
			w.rt.DropImage("busybox:latest")
			return errors.New("out of disk, for the moment")
		}
		w.create(testPod("p"))
		w.until("running", func() bool { return w.get("p").Status.Phase == v1.PodRunning })
	})
}
