package garbagecollector_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/garbagecollector"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// start runs an API server and a garbage collector that acts under upstream's rules for it.
func start(t *testing.T) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	cfg.GarbageCollector = true
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
	account := s.ClientConfig("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	client, err := kubernetes.NewForConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := metadata.NewForConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- garbagecollector.New(client, meta, nil).Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	admin, err := kubernetes.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	anyKind, err := dynamic.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	sa := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return admin, anyKind
}

func owned(name, kind, by string, uid types.UID) metav1.ObjectMeta {
	yes := true
	version := "apps/v1"
	if kind == "ConfigMap" {
		version = "v1"
	}
	return metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"app": "w"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: by, UID: uid, BlockOwnerDeletion: &yes}},
	}
}

// family makes a Deployment with a ReplicaSet, a Pod and a ConfigMap of it.
func family(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "w"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	d, err := c.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := c.AppsV1().ReplicaSets("default").Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: owned(name, "Deployment", name, d.UID), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").Create(ctx, &v1.Pod{ObjectMeta: owned(name, "ReplicaSet", name, rs.UID), Spec: template.Spec}, create); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, &v1.ConfigMap{ObjectMeta: owned(name, "Deployment", name, d.UID)}, create); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after a minute", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func absent[T any](t *testing.T, get func(context.Context, string, metav1.GetOptions) (T, error), name string) bool {
	_, err := get(t.Context(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func TestDeletionsAgainstAnAPIServer(t *testing.T) {
	c, _ := start(t)
	deployments, sets := c.AppsV1().Deployments("default"), c.AppsV1().ReplicaSets("default")
	pods, maps := c.CoreV1().Pods("default"), c.CoreV1().ConfigMaps("default")
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			name := "w-" + map[bool]string{true: "background", false: "foreground"}[policy == metav1.DeletePropagationBackground]
			family(t, c, name)
			if err := deployments.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all is gone", func() bool {
				gone := absent(t, deployments.Get, name)
				rest := absent(t, sets.Get, name) && absent(t, pods.Get, name) && absent(t, maps.Get, name)
				if policy == metav1.DeletePropagationForeground && gone && !rest {
					t.Error("the owner went before its dependents")
				}
				return gone && rest
			})
		})
	}
	t.Run("Orphan", func(t *testing.T) {
		family(t, c, "orphan")
		policy := metav1.DeletePropagationOrphan
		if err := deployments.Delete(t.Context(), "orphan", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the owner is gone", func() bool { return absent(t, deployments.Get, "orphan") })
		rs, err := sets.Get(t.Context(), "orphan", metav1.GetOptions{})
		if err != nil || len(rs.OwnerReferences) != 0 || rs.DeletionTimestamp != nil {
			t.Errorf("the replica set: %v, %v", rs, err)
		}
		pod, err := pods.Get(t.Context(), "orphan", metav1.GetOptions{})
		if err != nil || len(pod.OwnerReferences) != 1 || pod.DeletionTimestamp != nil {
			t.Errorf("the pod of the replica set: %v, %v", pod, err)
		}
	})
	t.Run("owners that never were", func(t *testing.T) {
		_, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: owned("lost", "ConfigMap", "nobody", "no-such-uid")}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		alien := owned("alien", "ConfigMap", "nobody", "another-uid")
		alien.OwnerReferences[0].Kind = "NotServed"
		if _, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: alien}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the lost one is gone", func() bool { return absent(t, maps.Get, "lost") })
		if absent(t, maps.Get, "alien") {
			t.Error("an owner of a kind that is not served was taken for absent")
		}
	})
}
