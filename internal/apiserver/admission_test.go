package apiserver

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func mustPod(t *testing.T, c kubernetes.Interface, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, err := c.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func TestPodIsCompleted(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	p := mustPod(t, c, testPod("p"))
	if p.Spec.ServiceAccountName != "default" || p.Spec.Priority == nil || *p.Spec.Priority != 0 {
		t.Errorf("account %q, priority %v", p.Spec.ServiceAccountName, p.Spec.Priority)
	}
	if len(p.Spec.Tolerations) != 2 || *p.Spec.Tolerations[0].TolerationSeconds != 300 {
		t.Errorf("tolerations %+v", p.Spec.Tolerations)
	}
	if len(p.Spec.Volumes) != 1 || !strings.HasPrefix(p.Spec.Volumes[0].Name, "kube-api-access-") {
		t.Fatalf("volumes %+v", p.Spec.Volumes)
	}
	if src := p.Spec.Volumes[0].Projected.Sources; len(src) != 3 || *src[0].ServiceAccountToken.ExpirationSeconds != 3607 {
		t.Errorf("token volume %+v", src)
	}
	if m := p.Spec.Containers[0].VolumeMounts; len(m) != 1 || m[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" || !m[0].ReadOnly {
		t.Errorf("mounts %+v", m)
	}
}

func TestPodWithoutItsServiceAccountIsRefused(t *testing.T) {
	s := start(t)
	p := testPod("p")
	p.Spec.ServiceAccountName = "absent"
	_, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
	refused(t, err, `error looking up service account default/absent: serviceaccount "absent" not found`)
}

func TestPriorityAndRuntimeClass(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	pc := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	if _, err := c.SchedulingV1().PriorityClasses().Create(ctx, pc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rc := &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "vm",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"memory": resource.MustParse("64Mi")}},
	}
	if _, err := c.NodeV1().RuntimeClasses().Create(ctx, rc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := testPod("p")
	p.Spec.PriorityClassName, p.Spec.RuntimeClassName = "high", new("vm")
	p = mustPod(t, c, p)
	if *p.Spec.Priority != 1000 || p.Spec.Overhead.Memory().String() != "64Mi" {
		t.Errorf("priority %d, overhead %v", *p.Spec.Priority, p.Spec.Overhead)
	}
	bad := testPod("q")
	bad.Spec.PriorityClassName = "absent"
	_, err := c.CoreV1().Pods("default").Create(ctx, bad, metav1.CreateOptions{})
	refused(t, err, "no PriorityClass with name absent was found")
	bad = testPod("q")
	bad.Spec.RuntimeClassName = new("absent")
	_, err = c.CoreV1().Pods("default").Create(ctx, bad, metav1.CreateOptions{})
	refused(t, err, `pod rejected: RuntimeClass "absent" not found`)
}

func TestLimitRangeDefaultsAndBounds(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	lr := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer,
		Max:  corev1.ResourceList{"memory": resource.MustParse("1Gi")},
		Min:  corev1.ResourceList{"memory": resource.MustParse("16Mi")},
	}}}}
	if _, err := c.CoreV1().LimitRanges("default").Create(ctx, lr, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		// The cache may learn of the range between the defaults and the validation of one pod.
		p, err := c.CoreV1().Pods("default").Create(ctx, generated(testPod("")), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if p.Spec.Containers[0].Resources.Limits.Memory().String() != "1Gi" {
			return fmt.Errorf("limit %v", p.Spec.Containers[0].Resources.Limits)
		}
		if p.Annotations["kubernetes.io/limit-ranger"] == "" {
			return fmt.Errorf("no annotation")
		}
		return nil
	})
	big := testPod("big")
	big.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("2Gi")}
	_, err := c.CoreV1().Pods("default").Create(ctx, big, metav1.CreateOptions{})
	refused(t, err, "maximum memory usage per Container is 1Gi, but limit is 2Gi")
}

func generated(p *corev1.Pod) *corev1.Pod {
	p.Name, p.GenerateName = "", "p-"
	return p
}

// eventually repeats a check that depends on a cache, which follows writes by a watch.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Error(err)
			return
		}
	}
}

func TestQuotaHoldsUnderConcurrency(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("5"), "pods": resource.MustParse("3")},
	}}
	if _, err := c.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ResourceQuotas("default").List(ctx, metav1.ListOptions{}); err != nil { // so that the cache has it
		t.Fatal(err)
	}
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := c.CoreV1().Pods("default").Create(ctx, generated(testPod("")), metav1.CreateOptions{})
			if err == nil {
				made.Add(1)
			} else if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3") {
				t.Errorf("refusal: %v", err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 3 {
		t.Errorf("%d pods made, quota 3", made.Load())
	}
}

// limit gives the default namespace a quota.
func limit(t *testing.T, c kubernetes.Interface, hard corev1.ResourceList) {
	t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := c.CoreV1().ResourceQuotas("default").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ResourceQuotas("default").List(t.Context(), metav1.ListOptions{}); err != nil { // so that the cache has it
		t.Fatal(err)
	}
}

func TestADeletedObjectFreesItsQuotaAtOnce(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	limit(t, c, corev1.ResourceList{"count/secrets": resource.MustParse("1")})
	api := c.CoreV1().Secrets("default")
	for i := range 20 {
		name := fmt.Sprintf("s%d", i)
		if _, err := api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "second"}}, metav1.CreateOptions{})
		refused(t, err, "exceeded quota: q, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1")
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatCouldNotBeCreatedTakesNothingOfAQuota(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	limit(t, c, corev1.ResourceList{"count/secrets": resource.MustParse("2")})
	api := c.CoreV1().Secrets("default")
	create := func(name string, opts metav1.CreateOptions) error {
		_, err := api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, opts)
		return err
	}
	if err := create("a", metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := create("a", metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("a second time: %v", err)
		}
		if err := create("dry", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Error(err)
		}
	}
	if err := create("b", metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// TestQuotaHoldsWhileObjectsComeAndGo checks that there are never more objects than the limit, and
// that no refusal reports more.
func TestQuotaHoldsWhileObjectsComeAndGo(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	limit(t, c, corev1.ResourceList{"pods": resource.MustParse("5")})
	pods := c.CoreV1().Pods("default")
	var alive, made atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 15 {
				pod, err := pods.Create(ctx, generated(testPod("")), metav1.CreateOptions{})
				switch {
				case apierrors.IsForbidden(err) && strings.HasSuffix(err.Error(), "requested: pods=1, used: pods=5, limited: pods=5"):
					continue
				case err != nil:
					t.Errorf("refusal: %v", err)
					return
				}
				made.Add(1)
				if n := alive.Add(1); n > 5 {
					t.Errorf("%d pods at once, quota 5", n)
				}
				alive.Add(-1)
				if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() <= 5 {
		t.Errorf("%d pods made: those that were deleted free nothing", made.Load())
	}
}

func TestQuotaHoldsUnderConcurrentUpdates(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	limit(t, c, corev1.ResourceList{"services.nodeports": resource.MustParse("2")})
	const many = 10
	var services []*corev1.Service
	for i := range many {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}
		service, err := c.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, service)
	}
	var changed atomic.Int32
	var wg sync.WaitGroup
	for _, service := range services {
		wg.Go(func() {
			service.Spec.Type = corev1.ServiceTypeNodePort
			_, err := c.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{})
			if err == nil {
				changed.Add(1)
			} else if !apierrors.IsForbidden(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := changed.Load(); n != 2 {
		t.Errorf("%d services got node ports, quota 2", n)
	}
}

func TestNothingIsCreatedInATerminatingNamespace(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	if _, err := c.CoreV1().ConfigMaps("absent").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.CoreV1().ConfigMaps("n").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	refused(t, err, "unable to create new content in namespace n because it is being terminated")
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no cause: %v", err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of default: %v", err)
	}
}

func TestNodeSeesOnlyWhatItsPodsNeed(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	for _, name := range []string{"used", "other"} {
		if _, err := c.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n1 := clientFor(t, s.ClientConfig("system:node:n1", "system:nodes"))
	n2 := clientFor(t, s.ClientConfig("system:node:n2", "system:nodes"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if _, err := n1.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Errorf("register: %v", err)
	}
	if _, err := n2.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("register under another name: %v", err)
	}
	p := testPod("p")
	p.Spec.NodeName = "n1"
	p.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "used"}}}}
	p = mustPod(t, c, p)
	if _, err := n1.CoreV1().Secrets("default").Get(ctx, "used", metav1.GetOptions{}); err != nil {
		t.Errorf("secret of its pod: %v", err)
	}
	if _, err := n1.CoreV1().Secrets("default").Get(ctx, "other", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another secret: %v", err)
	}
	if _, err := n2.CoreV1().Secrets("default").Get(ctx, "used", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secret of another node's pod: %v", err)
	}
	p.Status.Phase = corev1.PodRunning
	if _, err := n2.CoreV1().Pods("default").UpdateStatus(ctx, p, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("status of another node's pod: %v", err)
	}
	if _, err := n1.CoreV1().Pods("default").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Errorf("status of its pod: %v", err)
	}
	if _, err := n1.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("list its pods: %v", err)
	}
	if _, err := n1.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list all pods: %v", err)
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(3607)),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID},
	}}
	if _, err := n1.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", token.DeepCopy(), metav1.CreateOptions{}); err != nil {
		t.Errorf("token of its pod: %v", err)
	}
	if _, err := n2.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", token.DeepCopy(), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("token of another node's pod: %v", err)
	}
	if _, err := n1.CoreV1().Pods("default").Create(ctx, testPod("q"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node's pod that is no mirror: %v", err)
	}
}

func TestAPluginCanBeDisabled(t *testing.T) {
	s := start(t, func(cfg *Config) { cfg.DisableAdmission = []string{"ResourceQuota", "JobValidation"} })
	c := admin(t, s)
	limit(t, c, corev1.ResourceList{"count/secrets": resource.MustParse("0")})
	if _, err := c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}
