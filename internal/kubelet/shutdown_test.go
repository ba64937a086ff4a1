package kubelet

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/shutdown"
)

// login is a logind that the test controls.
type login struct {
	shutdowns chan bool
	held      bool
}

func (*login) Reserve(context.Context, time.Duration) error { return nil }
func (l *login) Inhibit(context.Context) (io.Closer, error) {
	l.held = true
	return unlock{l}, nil
}
func (l *login) Shutdowns(context.Context) (<-chan bool, error) { return l.shutdowns, nil }
func (*login) Close() error                                     { return nil }

type unlock struct{ l *login }

func (u unlock) Close() error {
	u.l.held = false
	return nil
}

func TestPodsEndBeforeTheMachineGoesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.ShutdownGracePeriod.Duration, w.cfg.ShutdownGracePeriodCriticalPods.Duration = 30*time.Second, 10*time.Second
		l := &login{shutdowns: make(chan bool)}
		w.prepare = func(k *Kubelet) {
			k.dialLogind = func(context.Context) (shutdown.Login, error) { return l, nil }
		}
		w.start()
		w.create(testPod("a"))
		critical := testPod("critical")
		critical.Spec.Priority = ptr.To[int32](2000000000)
		w.create(critical)
		w.until("Running", func() bool {
			return w.get("a").Status.Phase == v1.PodRunning && w.get("critical").Status.Phase == v1.PodRunning
		})
		if !l.held {
			t.Error("no lock is held")
		}
		l.shutdowns <- true
		w.until("the lock is let go", func() bool { return !l.held })
		for _, name := range []string{"a", "critical"} {
			p := w.get(name)
			if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Terminated" || p.Status.Message != "Pod was terminated in response to imminent node shutdown." ||
				condition(p, v1.DisruptionTarget) != v1.ConditionTrue {
				t.Errorf("%s: %+v", name, p.Status)
			}
		}
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
		if c := n.Status.Conditions[i]; c.Status != v1.ConditionFalse || c.Reason != "KubeletNotReady" || c.Message != "node is shutting down" {
			t.Errorf("%+v", c)
		}
		w.create(testPod("late"))
		w.until("the late pod is refused", func() bool { return w.get("late").Status.Phase == v1.PodFailed })
		if p := w.get("late"); p.Status.Reason != "NodeShutdown" {
			t.Errorf("%+v", p.Status)
		}
		if _, err := os.Stat(filepath.Join(w.cfg.RootDir, shutdown.StateFile)); err != nil {
			t.Error(err)
		}
		l.shutdowns <- false
		w.until("the node is ready again", func() bool {
			n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			return err == nil && n.Status.Conditions[i].Status == v1.ConditionTrue
		})
		w.create(testPod("after"))
		w.until("pods run again", func() bool { return w.get("after").Status.Phase == v1.PodRunning })
		if !l.held {
			t.Error("no lock is held again")
		}
		w.stop()
	})
}

// TestStaticPodsComeBack after a shutdown that is canceled and, after one that is not, with the
// next kubelet; until then their mirrors show why they do not run.
func TestStaticPodsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.ShutdownGracePeriod.Duration = 30 * time.Second
		l := &login{shutdowns: make(chan bool)}
		w.prepare = func(k *Kubelet) {
			k.dialLogind = func(context.Context) (shutdown.Login, error) { return l, nil }
		}
		w.start()
		pod, other := static(t, "1"), static(t, "2")
		other.Name, other.UID, other.Annotations[pods.AnnotationConfigHash] = "other-n1", "other", "other"
		w.k.setStaticPods("file", []*v1.Pod{pod, other})
		runs := func() bool {
			return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning && len(w.rt.Live(string(pod.UID), "")) > 0
		}
		down := func() {
			l.shutdowns <- true
			w.until("it is gone", func() bool { return len(w.rt.Live(string(pod.UID), "")) == 0 && !l.held })
			p := w.get("web-n1")
			if st := p.Status; st.Phase != v1.PodFailed || st.Reason != "Terminated" || condition(p, v1.PodReady) != v1.ConditionFalse || condition(p, v1.DisruptionTarget) != v1.ConditionTrue {
				t.Errorf("%+v", st)
			}
		}
		w.until("it runs", runs)
		down()
		w.k.setStaticPods("file", []*v1.Pod{pod}) // the other's manifest is removed
		w.pass(time.Second)
		l.shutdowns <- false
		w.until("it runs again", runs)
		if p := w.get("web-n1"); p.Status.Reason != "" || condition(p, v1.PodReady) != v1.ConditionTrue {
			t.Errorf("%+v", p.Status)
		}
		if w.pass(time.Minute); !w.gone("other-n1") || len(w.rt.Live("other", "")) > 0 {
			t.Error("a pod without manifest runs again")
		}
		down()
		w.stop()
		w.start()
		w.k.setStaticPods("file", []*v1.Pod{pod})
		w.until("it runs after the start", runs)
		w.stop()
	})
}
