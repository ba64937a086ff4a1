package horizontalpodautoscaler

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// gauge is a source that the test sets.
type gauge struct {
	mu      sync.Mutex
	samples map[string]sample
	outside []int64 // of external metrics, in thousandths; none if nil
	err     error
	during  func() // called while a metric is read
}

func (g *gauge) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *gauge) resource(context.Context, string, labels.Selector, v1.ResourceName, string) (map[string]sample, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.during != nil {
		g.during()
	}
	return g.samples, g.err
}

func (g *gauge) pods(context.Context, string, labels.Selector, string, labels.Selector) (map[string]sample, error) {
	return nil, errors.New("not here")
}

func (g *gauge) object(context.Context, string, *autoscalingv2.CrossVersionObjectReference, string, labels.Selector) (int64, error) {
	return 0, errors.New("not here")
}

func (g *gauge) external(context.Context, string, string, labels.Selector) ([]int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outside == nil {
		return nil, errors.New("not here")
	}
	read := g.outside
	if g.during != nil {
		g.during()
	}
	return read, nil
}

// cluster is a real API server with the controller, which acts under upstream's role.
type cluster struct {
	*testing.T
	kubernetes.Interface // as an administrator
}

func serve(t *testing.T) *apiserver.Server {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.MetricsAPI = false // the tests bring their own figures
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	cfg.DisableAdmission = []string{"ServiceAccount"}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := apiserver.New(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	return s
}

// run runs the controller, with the source or, if that is nil, with the metrics APIs.
func run(t *testing.T, s *apiserver.Server, from source, period time.Duration) cluster {
	t.Helper()
	client := func(user string, groups ...string) kubernetes.Interface {
		out, err := kubernetes.NewForConfig(s.ClientConfig(user, groups...))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const account = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
	f := informers.NewSharedInformerFactory(client("system:kube-controller-manager"), 0)
	c, err := New(client(account), s.ClientConfig(account), f, Defaults)
	if err != nil {
		t.Fatal(err)
	}
	if from != nil {
		c.source = from
	}
	c.options.Period, c.options.Window = period, 0
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- controller.Controller(c).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	})
	return cluster{t, client("admin", "system:masters")}
}

func (c cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// deploy makes a Deployment with pods that are at work, and an autoscaler of it.
func (c cluster) deploy() {
	c.Helper()
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "w"}}, Spec: pod("x").Spec}
	template.Spec.Containers[0].Image = "i"
	_, err := c.AppsV1().Deployments("default").Create(c.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "w"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}}, Template: template},
	}, metav1.CreateOptions{})
	c.check(err)
	for _, name := range []string{"p0", "p1"} {
		p := pod(name)
		p.Namespace, p.Spec.Containers[0].Image = "default", "i"
		made, err := c.CoreV1().Pods("default").Create(c.Context(), p, metav1.CreateOptions{})
		c.check(err)
		made.Status = p.Status
		_, err = c.CoreV1().Pods("default").UpdateStatus(c.Context(), made, metav1.UpdateOptions{})
		c.check(err)
	}
	c.autoscale("a")
}

func (c cluster) autoscale(name string) {
	c.Helper()
	_, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Create(c.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MaxReplicas: 10, Metrics: []autoscalingv2.MetricSpec{halfCPU()},
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "w"},
		},
	}, metav1.CreateOptions{})
	c.check(err)
}

// await waits for a state of the autoscaler.
func (c cluster) await(name, what string, is func(*autoscalingv2.HorizontalPodAutoscaler) bool) *autoscalingv2.HorizontalPodAutoscaler {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	w, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	c.check(err)
	defer w.Stop()
	var last *autoscalingv2.HorizontalPodAutoscaler
	for e := range w.ResultChan() {
		if a, ok := e.Object.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			if last = a; is(a) {
				return a
			}
		}
	}
	c.Fatalf("not %s: %+v", what, last)
	return nil
}

func condition(a *autoscalingv2.HorizontalPodAutoscaler, kind autoscalingv2.HorizontalPodAutoscalerConditionType) (reason, message string) {
	for _, c := range a.Status.Conditions {
		if c.Type == kind {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

func (c cluster) size() int32 {
	c.Helper()
	d, err := c.AppsV1().Deployments("default").Get(c.Context(), "w", metav1.GetOptions{})
	c.check(err)
	return *d.Spec.Replicas
}

func TestGrowsAndShrinks(t *testing.T) {
	from := &gauge{samples: uses(2000, 2000)}
	c := run(t, serve(t), from, 20*time.Millisecond)
	c.deploy()
	a := c.await("a", "grown", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Status.DesiredReplicas == 8 })
	if reason, _ := condition(a, autoscalingv2.ScalingActive); reason != "ValidMetricFound" || a.Status.LastScaleTime == nil {
		t.Errorf("%+v", a.Status)
	}
	from.set(func() { from.samples = uses(0, 0) })
	c.await("a", "shrunk", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Status.DesiredReplicas == 1 })
	if n := c.size(); n != 1 {
		t.Errorf("size %d", n)
	}
}

// TestWithoutMetricsAPI: what a cluster without a metrics server says of an autoscaler.
func TestWithoutMetricsAPI(t *testing.T) {
	c := run(t, serve(t), nil, time.Hour)
	c.deploy()
	a := c.await("a", "told", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return len(a.Status.Conditions) == 2 })
	reason, message := condition(a, autoscalingv2.ScalingActive)
	const want = "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"
	if reason != "FailedGetResourceMetric" || message != want {
		t.Errorf("%s: %s", reason, message)
	}
	for metric, says := range map[string]string{
		`{"type":"Pods","pods":{"metric":{"name":"rps"},"target":{"type":"AverageValue","averageValue":"1"}}}`: "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered",
		`{"type":"External","external":{"metric":{"name":"q"},"target":{"type":"Value","value":"1"}}}`:         "unable to fetch metrics from external metrics API: the server could not find the requested resource (get q.external.metrics.k8s.io)",
	} {
		_, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"metrics":[`+metric+`]}}`), metav1.PatchOptions{})
		c.check(err)
		c.await("a", says, func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
			_, message := condition(a, autoscalingv2.ScalingActive)
			return strings.Contains(message, says) && *a.Status.ObservedGeneration == a.Generation
		})
	}
}

func TestTargetThatIsNotThere(t *testing.T) {
	c := run(t, serve(t), &gauge{}, time.Hour)
	c.autoscale("a")
	a := c.await("a", "told", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return len(a.Status.Conditions) > 0 })
	if reason, message := condition(a, autoscalingv2.AbleToScale); reason != "FailedGetScale" || !strings.Contains(message, `deployments.apps "w" not found`) {
		t.Errorf("%s: %s", reason, message)
	}
	_, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"spec":{"scaleTargetRef":{"apiVersion":"example.com/v1","kind":"Nothing"}}}`), metav1.PatchOptions{})
	c.check(err)
	c.await("a", "told of the kind", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
		_, message := condition(a, autoscalingv2.AbleToScale)
		return strings.Contains(message, `no matches for kind "Nothing" in group "example.com"`)
	})
}

// TestTwoAutoscalersOfOneTarget: neither of them acts, instead of both in turn.
func TestTwoAutoscalersOfOneTarget(t *testing.T) {
	from := &gauge{err: errors.New("not yet")}
	c := run(t, serve(t), from, 20*time.Millisecond)
	c.deploy()
	c.autoscale("b")
	for _, name := range []string{"a", "b"} {
		a := c.await(name, "refused", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
			reason, _ := condition(a, autoscalingv2.ScalingActive)
			return reason == "AmbiguousSelector"
		})
		if _, message := condition(a, autoscalingv2.ScalingActive); message != "pods by selector app=w are controlled by multiple HPAs: [default/a default/b]" {
			t.Error(message)
		}
	}
	c.check(c.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	from.set(func() { from.err, from.samples = nil, uses(1000, 1000) })
	c.await("a", "alone", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Status.DesiredReplicas == 4 })
}

// TestSizeThatSomebodyElseSet: an answer to an old size is not given to a new one, and a target that
// was set to zero stays there.
func TestSizeThatSomebodyElseSet(t *testing.T) {
	from := &gauge{samples: uses(2000, 2000)}
	c := run(t, serve(t), from, time.Hour)
	from.during = func() {
		from.during = nil
		_, err := c.AppsV1().Deployments("default").Patch(context.WithoutCancel(t.Context()), "w", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	c.deploy()
	c.await("a", "switched off", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
		reason, _ := condition(a, autoscalingv2.ScalingActive)
		return reason == "ScalingDisabled"
	})
	if n := c.size(); n != 0 {
		t.Errorf("size %d", n)
	}
}

// TestOthersWriteToTheTarget: a conflict with somebody who does not set the size does not stop us.
func TestOthersWriteToTheTarget(t *testing.T) {
	from := &gauge{samples: uses(2000, 2000)}
	c := run(t, serve(t), from, time.Hour)
	from.during = func() {
		from.during = nil
		_, err := c.AppsV1().Deployments("default").Patch(context.WithoutCancel(t.Context()), "w", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	c.deploy()
	c.await("a", "grown", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Status.DesiredReplicas == 4 })
}

// TestToZeroAndBack: without work there are no pods, with some there are; but nobody wakes what an administrator has put to
// rest.
func TestToZeroAndBack(t *testing.T) {
	from := &gauge{outside: []int64{2000}}
	c := run(t, serve(t), from, 20*time.Millisecond)
	c.deploy()
	hpas := c.AutoscalingV2().HorizontalPodAutoscalers("default")
	patch := []byte(`{"spec":{"minReplicas":0,"metrics":[{"type":"External","external":{"metric":{"name":"queue"},"target":{"type":"Value","value":"1"}}}],
		"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}`)
	_, err := hpas.Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{})
	c.check(err)
	c.await("a", "grown", func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Status.DesiredReplicas > 2 })
	zeroed := func(want string) func(*autoscalingv2.HorizontalPodAutoscaler) bool {
		return func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
			reason, _ := condition(a, autoscalingv2.ScaledToZero)
			return reason == want && (a.Status.DesiredReplicas == 0) == (want == "ScaledToZero")
		}
	}
	from.set(func() { from.outside = []int64{0} })
	c.await("a", "at rest", zeroed("ScaledToZero"))
	if n := c.size(); n != 0 {
		t.Errorf("size %d", n)
	}
	from.set(func() { from.outside = []int64{3000} })
	c.await("a", "awake", zeroed("NotScaledToZero"))
	if n := c.size(); n == 0 {
		t.Errorf("size %d", n)
	}
	_, err = c.AppsV1().Deployments("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
	c.check(err)
	c.await("a", "switched off", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
		reason, _ := condition(a, autoscalingv2.ScalingActive)
		return reason == "ScalingDisabled"
	})
	if n := c.size(); n != 0 {
		t.Errorf("size %d", n)
	}
}

// TestTwoSetZeroAtOnce: if an administrator puts the target to rest while the autoscaler is about to, it is the
// administrator's rest, and no work wakes it.
func TestTwoSetZeroAtOnce(t *testing.T) {
	from := &gauge{outside: []int64{1000}}
	c := run(t, serve(t), from, 20*time.Millisecond)
	c.deploy()
	patch := []byte(`{"spec":{"minReplicas":0,"metrics":[{"type":"External","external":{"metric":{"name":"queue"},"target":{"type":"Value","value":"1"}}}],
		"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}`)
	_, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{})
	c.check(err)
	c.await("a", "at work", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
		reason, _ := condition(a, autoscalingv2.ScalingActive)
		return reason == "ValidMetricFound"
	})
	from.set(func() {
		from.outside = []int64{0}
		from.during = func() {
			from.during, from.outside = nil, []int64{3000} // from the next look on there is work
			_, err := c.AppsV1().Deployments("default").Patch(context.WithoutCancel(t.Context()), "w", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
			if err != nil {
				t.Error(err)
			}
		}
	})
	c.await("a", "switched off", func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
		reason, _ := condition(a, autoscalingv2.ScalingActive)
		zeroed, _ := condition(a, autoscalingv2.ScaledToZero)
		return reason == "ScalingDisabled" && zeroed == "NotScaledToZero"
	})
	if n := c.size(); n != 0 {
		t.Errorf("size %d", n)
	}
}
