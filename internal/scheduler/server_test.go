package scheduler_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/scheduler"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// server is a real API server, with clients that have no more rights than they would have in a cluster.
type server struct {
	*apiserver.Server
	t     *testing.T
	admin kubernetes.Interface
}

func startServer(t *testing.T) *server {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	s, err := apiserver.New(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	out := &server{Server: s, t: t}
	out.admin = out.as("admin", "system:masters")
	return out
}

func (s *server) as(user string, groups ...string) kubernetes.Interface {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.ClientConfig(user, groups...))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// schedule runs a scheduler until it is stopped.
func (s *server) schedule() (stop func()) {
	s.t.Helper()
	sched, err := scheduler.New(s.t.Context(), s.as("system:kube-scheduler"), aMinute())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sched.Run(ctx) }()
	select {
	case <-sched.Ready():
	case <-time.After(time.Minute):
		s.t.Fatal("the scheduler is not ready: it may lack rights")
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	}
}

// await returns once a watch has told of an object of the name that is as wanted.
func await[T metav1.Object](t *testing.T, c interface {
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}, name string, wanted func(T) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last T
	for e := range w.ResultChan() {
		obj, ok := e.Object.(T)
		if !ok {
			t.Fatalf("watch: %v", e)
		}
		if last = obj; wanted(obj) {
			return
		}
	}
	t.Fatalf("%s did not become as wanted; last %+v", name, last)
}

// TestVolumesOnARealServer: the versions of objects, their fields' managers and the scheduler's rights are real. A
// claim gets a volume that exists and another one that is made for it, while the scheduler is restarted in the
// middle.
func TestVolumesOnARealServer(t *testing.T) {
	s := startServer(t)
	ctx, core := t.Context(), s.admin.CoreV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []string{existing, made} {
		provisioner := map[string]string{existing: "kubernetes.io/no-provisioner", made: "example.com/maker"}[c]
		_, err := s.admin.StorageV1().StorageClasses().Create(ctx, storageClass(c, provisioner), metav1.CreateOptions{})
		must(err)
	}
	for _, name := range []string{"n1", "n2"} {
		_, err := core.Nodes().Create(ctx, node(name, "4"), metav1.CreateOptions{})
		must(err)
	}
	v := localVolume("v", "2Gi", v1.LabelHostname, "n2")
	v.UID, v.ResourceVersion, v.Spec.PersistentVolumeReclaimPolicy = "", "", v1.PersistentVolumeReclaimRetain
	v, err := core.PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	must(err)
	v.Status.Phase = v1.VolumeAvailable
	_, err = core.PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
	must(err)
	for name, class := range map[string]string{"c": existing, "d": made, "e": existing} {
		c := claim(name, class, "1Gi")
		c.UID, c.ResourceVersion = "", ""
		_, err := core.PersistentVolumeClaims("default").Create(ctx, c, metav1.CreateOptions{})
		must(err)
	}
	stop := s.schedule()
	newPod := func(name string, claims ...string) {
		p := pod(name, "1", using(claims...))
		p.UID, p.Generation = "", 0
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} // no kubelet says that the nodes are ready
		p.Spec.Containers[0].Image, p.Spec.AutomountServiceAccountToken = "none", new(false)
		for i := range p.Spec.Volumes {
			p.Spec.Volumes[i].Name = "v-" + p.Spec.Volumes[i].Name
		}
		_, err := core.Pods("default").Create(ctx, p, metav1.CreateOptions{})
		must(err)
	}
	_, err = core.ServiceAccounts("default").Create(ctx,
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(err)
	newPod("p", "c", "d")
	await(t, core.PersistentVolumes(), "v",
		func(v *v1.PersistentVolume) bool { return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == "c" })
	await(t, core.PersistentVolumeClaims("default"), "d", func(c *v1.PersistentVolumeClaim) bool {
		return c.Annotations["volume.kubernetes.io/selected-node"] == "n2"
	})
	stop()
	stop = s.schedule()
	defer func() { stop() }()
	newPod("q", "e")
	await(t, core.Pods("default"), "q", func(p *v1.Pod) bool {
		return len(p.Status.Conditions) > 0 && p.Spec.NodeName == "" && p.Status.Conditions[0].Message ==
			"0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	})
	defer runBinder(t, binder{client: s.admin}, 50*time.Millisecond)()
	await(t, core.Pods("default"), "p", func(p *v1.Pod) bool { return p.Spec.NodeName == "n2" })
	got, err := core.PersistentVolumes().Get(ctx, "v", metav1.GetOptions{})
	must(err)
	if len(got.ManagedFields) == 0 {
		t.Error("the scheduler has wiped out who manages the volume's fields")
	}
}
