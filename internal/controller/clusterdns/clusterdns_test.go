package clusterdns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/cluster"
)

var config = Config{IP: netip.MustParseAddr("10.96.0.10"), Node: "one", Server: netip.MustParseAddrPort("10.244.0.1:53")}

// with runs the controller on the objects, and then f.
func with(t *testing.T, objs []runtime.Object, f func(ctx context.Context, client *fake.Clientset)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(objs...)
		factory := informers.NewSharedInformerFactory(client, 0)
		c, err := New(client, factory, config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		f(ctx, client)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
}

func service(ctx context.Context, t *testing.T, c *fake.Clientset) *v1.Service {
	t.Helper()
	s, err := c.CoreV1().Services(Namespace).Get(ctx, Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func slice(ctx context.Context, t *testing.T, c *fake.Clientset) *discoveryv1.EndpointSlice {
	t.Helper()
	s, err := c.DiscoveryV1().EndpointSlices(Namespace).Get(ctx, "kube-dns-one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheServiceIsMadeAndRestored(t *testing.T) {
	with(t, nil, func(ctx context.Context, c *fake.Clientset) {
		for range 2 {
			if s := service(ctx, t, c); s.Spec.ClusterIP != "10.96.0.10" || len(s.Spec.Ports) != 2 || s.Labels["k8s-app"] != "kube-dns" {
				t.Errorf("%+v", s)
			}
			if s := slice(ctx, t, c); s.Endpoints[0].Addresses[0] != "10.244.0.1" || *s.Ports[0].Port != 53 || s.Labels[discoveryv1.LabelServiceName] != Name {
				t.Errorf("%+v", s)
			}
			if err := c.CoreV1().Services(Namespace).Delete(ctx, Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := c.DiscoveryV1().EndpointSlices(Namespace).Delete(ctx, "kube-dns-one", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

func TestANodeThatMovedIsPublishedAnew(t *testing.T) {
	before := &Controller{cfg: Config{IP: netip.MustParseAddr("10.97.0.10"), Node: "one", Server: netip.MustParseAddrPort("[fd00::1]:5353")}}
	with(t, []runtime.Object{before.service(), sliceOf(before.cfg.Node, before.cfg.Server, true)}, func(ctx context.Context, c *fake.Clientset) {
		if s := service(ctx, t, c); s.Spec.ClusterIP != "10.96.0.10" {
			t.Errorf("%+v", s.Spec)
		}
		if s := slice(ctx, t, c); s.AddressType != discoveryv1.AddressTypeIPv4 || s.Endpoints[0].Addresses[0] != "10.244.0.1" {
			t.Errorf("%+v", s)
		}
	})
}

func TestSomebodyElsesDNSIsLeftAlone(t *testing.T) {
	theirs := (&Controller{cfg: config}).service()
	theirs.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	theirs.Spec.ClusterIP = "10.96.0.99"
	with(t, []runtime.Object{theirs, sliceOf(config.Node, config.Server, true)}, func(ctx context.Context, c *fake.Clientset) {
		if s := service(ctx, t, c); s.Spec.ClusterIP != "10.96.0.99" || s.Spec.Selector == nil {
			t.Errorf("%+v", s.Spec)
		}
		if _, err := c.DiscoveryV1().EndpointSlices(Namespace).Get(ctx, "kube-dns-one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("our slice is still there: %v", err)
		}
	})
}

// Nodes that have joined say where they answer, and have a slice as long as they are there. None is believed that names an
// address of somebody else.
func TestNodesThatAnswerArePublished(t *testing.T) {
	node := func(name, at string, ready v1.ConditionStatus) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{cluster.AnnotationDNS: at}}}
		n.Spec.PodCIDRs = []string{"10.244.1.0/24"}
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		return n
	}
	with(t, []runtime.Object{
		node("two", "10.244.1.1:53", v1.ConditionTrue), node("three", "192.0.2.1:10053", v1.ConditionUnknown), node("thief", "10.244.0.1:53", v1.ConditionTrue),
		node("none", "", v1.ConditionTrue), node("one", "10.244.1.9:53", v1.ConditionTrue),
	}, func(ctx context.Context, c *fake.Clientset) {
		published := func() (out []string) {
			list, err := c.DiscoveryV1().EndpointSlices(Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range list.Items {
				e := s.Endpoints[0]
				out = append(out, fmt.Sprintf("%s %s:%d %v for %s", s.Name, e.Addresses[0], *s.Ports[0].Port, *e.Conditions.Ready, e.Hints.ForNodes[0].Name))
			}
			slices.Sort(out)
			return out
		}
		want := []string{"kube-dns-one 10.244.0.1:53 true for one", "kube-dns-three 192.0.2.1:10053 false for three", "kube-dns-two 10.244.1.1:53 true for two"}
		if got := published(); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		n, err := c.CoreV1().Nodes().Get(ctx, "three", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].Status = v1.ConditionTrue
		if _, err := c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.CoreV1().Nodes().Delete(ctx, "two", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want = []string{"kube-dns-one 10.244.0.1:53 true for one", "kube-dns-three 192.0.2.1:10053 true for three"}
		if got := published(); !slices.Equal(got, want) {
			t.Errorf("afterwards: %q, want %q", got, want)
		}
	})
}
