package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/mount"
	"wherry.dev/test/fakecri"
	"wherry.dev/test/leaks"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) {
	// The second handler slows errors down with a clock of the whole process, which in virtual time
	// may be decades off: keep only the handler that logs.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(leaks.Watch(panics.Watch(m)).Run())
}

// world is a node with a fake runtime and a fake API server, in virtual time.
type world struct {
	t      testing.TB
	rt     *fakecri.Runtime
	client *fake.Clientset
	cfg    config.Config
	k      *Kubelet
	alone  bool // no API server
	// prepare changes a kubelet before it runs.
	prepare func(*Kubelet)

	mu   sync.Mutex
	told []string // events
	uids int

	cancel context.CancelFunc
	done   chan error
}

// noCgroups remembers which groups exist, and creates none.
type noCgroups struct{ dir string }

func (c noCgroups) Ensure(p string, _ *specs.LinuxResources) error {
	return os.MkdirAll(filepath.Join(c.dir, p), 0o755)
}
func (c noCgroups) Remove(p string) error { return os.RemoveAll(filepath.Join(c.dir, p)) }
func (c noCgroups) Kill(string) error     { return nil }
func (c noCgroups) Exists(p string) bool {
	_, err := os.Stat(filepath.Join(c.dir, p))
	return err == nil
}

func (c noCgroups) Children(p string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, p))
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return out, err
}

func newWorld(t testing.TB) *world {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		if err := mount.UnmountUnder(root); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	cfg := config.Default()
	cfg.NodeName, cfg.NodeIP = "n1", "192.0.2.10"
	cfg.RootDir = filepath.Join(root, "kubelet")
	cfg.PodLogsDir, cfg.ContainerLogsDir = filepath.Join(root, "pods"), filepath.Join(root, "containers")
	cfg.EnableServer, cfg.HealthzPort = new(false), ptr.To[int32](0)
	cfg.ResolverConfig = new("")
	// However full the machine's disk is.
	cfg.EvictionHard, cfg.ImageGCHighThresholdPercent = map[string]string{"memory.available": "100Mi"}, ptr.To[int32](100)
	objs := []runtime.Object{
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt", UID: "ca"}, Data: map[string]string{"ca.crt": "CA"}},
		&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "svc"}, Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.1", Ports: []v1.ServicePort{{Name: "https", Port: 443, Protocol: v1.ProtocolTCP}},
		}},
	}
	w := &world{t: t, rt: fakecri.New("busybox:latest"), client: fake.NewClientset(objs...), cfg: cfg}
	w.client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		// In virtual time all events of a pod would get the same name.
		if ev, ok := create.GetObject().(*v1.Event); ok {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, ev.Reason+": "+ev.Message)
			return true, ev, nil
		}
		if m, ok := create.GetObject().(metav1.Object); ok && m.GetUID() == "" {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.uids++
			m.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
		}
		return false, nil, nil
	})
	w.client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		req := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		req.Status = authenticationv1.TokenRequestStatus{
			Token:               "token-of-" + req.Spec.BoundObjectRef.Name,
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Duration(*req.Spec.ExpirationSeconds) * time.Second)),
		}
		return true, req, nil
	})
	w.loseNothing()
	return w
}

// loseNothing makes the kubelet's watch of pods return what happened since its list, as an API
// server's does; that of the fake client begins with what happens next.
func (w *world) loseNothing() {
	var mu sync.Mutex
	var since watch.Interface
	w.client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() { // the test's own
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		if since != nil {
			since.Stop()
		}
		var err error
		since, err = w.client.Tracker().Watch(podResource, metav1.NamespaceAll)
		return err != nil, nil, err
	})
	w.client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		taken := since
		since = nil
		return taken != nil, taken, nil
	})
}

func (w *world) start() {
	w.t.Helper()
	w.launch()
	synctest.Wait()
}

// launch runs the kubelet and waits until it is ready; it works in real time, too.
func (w *world) launch() {
	w.t.Helper()
	w.begin()
	select {
	case <-w.k.Ready():
	case err := <-w.done:
		w.t.Fatalf("Run ended: %v", err)
	}
}

// begin runs the kubelet.
func (w *world) begin() {
	w.t.Helper()
	deps := Deps{
		Runtime: fakecri.Service{Runtime: w.rt}, Images: fakecri.Images{Runtime: w.rt},
		Cgroups: noCgroups{filepath.Join(filepath.Dir(w.cfg.RootDir), "cgroup")},
	}
	if !w.alone {
		deps.Client = w.client
	}
	k, err := New(w.cfg, deps)
	if err != nil {
		w.t.Fatal(err)
	}
	// Waiting for the kernel keeps virtual time from advancing.
	k.watchLogs, k.watchPlugins = func() (logs.Watcher, error) { return silentWatch{}, nil }, false
	if w.prepare != nil {
		w.prepare(k)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.k, w.cancel, w.done = k, cancel, make(chan error, 1)
	go func() { w.done <- k.Run(ctx) }()
}

func (w *world) stop() {
	w.t.Helper()
	w.cancel()
	if err := <-w.done; err != nil {
		w.t.Errorf("Run: %v", err)
	}
	for _, v := range w.rt.Violations() {
		w.t.Errorf("violation: %s", v)
	}
}

// run runs a test in virtual time on a node that is ready.
func run(t *testing.T, play func(w *world)) { runWith(t, func(*config.Config) {}, play) }

func runWith(t *testing.T, configure func(*config.Config), play func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		configure(&w.cfg)
		w.start()
		play(w)
		w.stop()
	})
}

func (w *world) create(pod *v1.Pod) *v1.Pod {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods(pod.Namespace).Create(w.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) get(name string) *v1.Pod {
	w.t.Helper()
	p, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) gone(name string) bool {
	_, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// remove does what the API server does on a graceful deletion.
func (w *world) remove(name string, grace int64) {
	w.t.Helper()
	p := w.get(name)
	end := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, &grace
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets virtual time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// until waits, at most an hour of virtual time, for a condition.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for range 36000 {
		synctest.Wait()
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.dump()
	w.t.Fatalf("never: %s", what)
}

func (w *world) dump() {
	for _, s := range w.k.table.List() {
		data, err := json.MarshalIndent(s.Plan, "", " ")
		w.t.Logf("%s %s %v\nstatus: %+v", s.Pod.Name, data, err, s.Status)
		for _, tr := range s.Transitions {
			w.t.Logf("%s %s %+v %s", tr.At.Format("05.000"), tr.What, tr.Op, tr.Err)
		}
	}
}

func testPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec: v1.PodSpec{
			NodeName: "n1", RestartPolicy: v1.RestartPolicyAlways, ServiceAccountName: "default", DNSPolicy: v1.DNSDefault,
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []v1.Container{{
				Name: "c", Image: "busybox:latest", Command: []string{"sleep", "1000"}, ImagePullPolicy: v1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log",
				VolumeMounts:           []v1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
				Resources:              v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m")}},
			}},
			Volumes: []v1.Volume{{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				DefaultMode: ptr.To[int32](0o644),
				Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3607)}},
					{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
					{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
				},
			}}}},
		},
	}
}

func condition(p *v1.Pod, t v1.PodConditionType) v1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

func TestPodRunsAndIsDeleted(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Behave = nil
		w.create(testPod("a"))
		w.until("Running and Ready", func() bool {
			p := w.get("a")
			return p.Status.Phase == v1.PodRunning && condition(p, v1.PodReady) == v1.ConditionTrue
		})
		p := w.get("a")
		if p.Status.PodIP == "" || p.Status.HostIP != "192.0.2.10" || p.Status.StartTime == nil || p.Status.QOSClass != v1.PodQOSBurstable {
			t.Errorf("status is incomplete: %+v", p.Status)
		}
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "fake://")
		cfg := w.rt.Config(id)
		env := map[string]string{}
		for _, e := range cfg.Envs {
			env[e.Key] = string(e.Value)
		}
		if env["KUBERNETES_SERVICE_HOST"] != "10.96.0.1" || env["KUBERNETES_SERVICE_PORT"] != "443" {
			t.Errorf("environment lacks the API server's service: %v", env)
		}
		for file, want := range map[string]string{"token": "token-of-a", "ca.crt": "CA", "namespace": "default"} {
			got, err := os.ReadFile(filepath.Join(cfg.Mounts[0].HostPath, file))
			if err != nil || string(got) != want {
				t.Errorf("%s: got %q, %v", file, got, err)
			}
		}
		w.remove("a", 30)
		w.until("gone", func() bool { return w.gone("a") })
		if n := w.rt.Sandboxes() + w.rt.Containers(); n != 0 {
			t.Errorf("%d sandboxes and containers are left", n)
		}
		for _, dir := range []string{w.k.dirs.Pods(), w.cfg.PodLogsDir, filepath.Join(w.cfg.RootDir, "records"), w.cfg.ContainerLogsDir} {
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) > 0 {
				t.Errorf("%s is not empty: %v %v", dir, entries, err)
			}
		}
	})
}

func TestRestartOfTheKubeletRestartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.create(testPod("a"))
		w.until("Running", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		before := w.get("a").Status
		w.stop()
		writes := 0
		w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			writes++
			return false, nil, nil
		})
		w.start()
		w.pass(10 * time.Minute)
		after := w.get("a").Status
		if before.ContainerStatuses[0].ContainerID != after.ContainerStatuses[0].ContainerID || after.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("container was replaced: %+v", after.ContainerStatuses)
		}
		if writes != 0 {
			t.Errorf("the status was written %d times although nothing changed", writes)
		}
		w.stop()
	})
}

func TestOrphanIsTornDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.create(testPod("a"))
		w.until("Running", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.stop()
		if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.until("nothing left", func() bool { return w.rt.Sandboxes()+w.rt.Containers() == 0 && len(w.k.table.List()) == 0 })
		w.stop()
	})
}

// What appeared in the runtime after its pod was already gone used to stay for minutes, until the
// next relist.
func TestSandboxOfAPodThatIsGoneIsTornDown(t *testing.T) {
	run(t, func(w *world) {
		w.pass(10 * time.Second)
		late := &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "late", Namespace: "default", Uid: "uid-late"},
			Labels:   map[string]string{pods.LabelPodUID: "uid-late", pods.LabelPodName: "late", pods.LabelPodNamespace: "default"},
		}
		if _, err := w.rt.RunPodSandbox(t.Context(), late, ""); err != nil {
			t.Fatal(err)
		}
		w.pass(5 * time.Second)
		if n := w.rt.Sandboxes(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
}

// silentWatch never reports a write.
type silentWatch struct{}

func (silentWatch) Next(string) error { return nil }

func (silentWatch) Run(ctx context.Context, _ func(string)) error {
	<-ctx.Done()
	return nil
}
