package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/source"
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

// Static pods are driven through the source's callback: inotify does not live in
// virtual time. TestFiles has the folder.
func static(t *testing.T, num string) *v1.Pod {
	t.Helper()
	p, err := source.StaticPod([]byte(strings.Replace(manifest, "NUM", num, 1)), "n1", "file:/m/web.yaml", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStaticPodAndItsMirror(t *testing.T) {
	run(t, func(w *world) {
		one := static(t, "1")
		w.k.setStaticPods([]*v1.Pod{one})
		w.until("mirror Running", func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning })
		m := w.get("web-n1")
		hash := m.Annotations["kubernetes.io/config.hash"]
		if hash == "" || m.Annotations["kubernetes.io/config.mirror"] != hash || m.Annotations["kubernetes.io/config.source"] != "file" ||
			len(m.OwnerReferences) != 1 || m.OwnerReferences[0].Kind != "Node" {
			t.Errorf("mirror: %+v", m.ObjectMeta)
		}
		if err := w.k.mirrors.remove(t.Context(), m); err != nil { // somebody deletes it
			t.Fatal(err)
		}
		w.until("mirror is back", func() bool { return !w.gone("web-n1") && w.get("web-n1").Status.Phase == v1.PodRunning })
		if w.rt.Calls("CreateContainer") != 1 {
			t.Error("the deletion of the mirror touched the pod")
		}
		two := static(t, "2")
		if one.UID == two.UID {
			t.Fatal("the UID does not follow the content")
		}
		w.k.setStaticPods([]*v1.Pod{two})
		w.until("replaced", func() bool {
			return !w.gone("web-n1") && w.get("web-n1").Annotations["kubernetes.io/config.hash"] != hash &&
				w.get("web-n1").Status.Phase == v1.PodRunning && len(w.rt.Live(string(one.UID), "")) == 0
		})
		w.k.setStaticPods(nil)
		w.until("gone", func() bool { return w.gone("web-n1") && w.rt.Sandboxes() == 0 })
	})
}

func TestStandaloneKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alone = true
		w.start()
		w.k.setStaticPods([]*v1.Pod{static(t, "1")})
		w.until("running", func() bool { return len(w.rt.Live("", "c")) == 1 })
		w.stop()
		w.start()
		w.k.setStaticPods([]*v1.Pod{static(t, "1")})
		w.pass(time.Minute)
		if w.rt.Calls("CreateContainer") != 1 {
			t.Log("without --pod-manifest-path the pod was unwanted for a moment, as it should be")
		}
		w.k.setStaticPods(nil)
		w.until("gone", func() bool { return w.rt.Sandboxes() == 0 })
		w.stop()
	})
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got := make(chan []*v1.Pod, 10)
	done := make(chan error, 1)
	ctx, cancel := contextWithCancel(t)
	go func() { done <- source.Files(ctx, dir, "n1", func(p []*v1.Pod) { got <- p }) }()
	next := func(n int) []*v1.Pod {
		t.Helper()
		for {
			select {
			case p := <-got:
				if len(p) == n {
					return p
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("never %d pods", n)
			}
		}
	}
	next(0)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("web.yaml", manifest)
	first := next(1)[0]
	if first.Name != "web-n1" || first.Spec.RestartPolicy != v1.RestartPolicyAlways || first.Spec.Containers[0].TerminationMessagePath == "" {
		t.Errorf("pod: %+v", first)
	}
	write("broken.yaml", "kind: Pod\napiVersion: v1\nspec: [")
	write(".swp", manifest)
	if p := next(1)[0]; p.UID != first.UID {
		t.Error("a broken neighbour changed the pod")
	}
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	next(0)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzStaticPod(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"spec":{"containers":[{"name":"c"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := source.StaticPod(data, "n1", "file:x", time.Time{})
		if err == nil && (p.UID == "" || p.Name == "" || p.Spec.NodeName != "n1") {
			t.Errorf("%+v", p)
		}
	})
}
