package controller_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	k8stesting "k8s.io/client-go/testing"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/endpoints"
	"wherry.dev/internal/controller/endpointslice"
	"wherry.dev/internal/controller/endpointslicemirroring"
)

// newServices returns a fake API server with the controllers of endpoints.
func newServices(t *testing.T, objs ...runtime.Object) (*cluster, func()) {
	t.Helper()
	objs = append(objs, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	return clusterOf(t, objs, func(c clientset.Interface, f informers.SharedInformerFactory) ([]controller.Controller, error) {
		slices, err1 := endpointslice.New(c, f)
		old, err2 := endpoints.New(c, f)
		mirror, err3 := endpointslicemirroring.New(c, f)
		return []controller.Controller{slices, old, mirror}, errors.Join(err1, err2, err3)
	})
}

func webService(changes ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "web", Labels: map[string]string{"team": "x"}},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Selector: labels(), Ports: []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: v1.ProtocolTCP}},
		},
	}
	for _, f := range changes {
		f(s)
	}
	return s
}

// backend is a pod that a service may select.
func backend(i int, ready bool) *v1.Pod {
	status := v1.ConditionFalse
	if ready {
		status = v1.ConditionTrue
	}
	ip := fmt.Sprintf("10.244.%d.%d", i/250, i%250+1)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("web-%04d", i), Labels: labels()},
		Spec:       v1.PodSpec{NodeName: "n"},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, PodIP: ip, PodIPs: []v1.PodIP{{IP: ip}},
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: status, LastTransitionTime: metav1.Now()}},
		},
	}
}

func (c *cluster) add(objs ...runtime.Object) {
	c.t.Helper()
	for _, o := range objs {
		var err error
		switch o := o.(type) {
		case *v1.Pod:
			_, err = c.CoreV1().Pods(o.Namespace).Create(c.t.Context(), o, metav1.CreateOptions{})
		case *v1.Service:
			_, err = c.CoreV1().Services(o.Namespace).Create(c.t.Context(), o, metav1.CreateOptions{})
		case *v1.Endpoints:
			_, err = c.CoreV1().Endpoints(o.Namespace).Create(c.t.Context(), o, metav1.CreateOptions{})
		default:
			c.t.Fatalf("%T", o)
		}
		c.check(err)
	}
	synctest.Wait()
}

func (c *cluster) updatePod(p *v1.Pod) {
	c.t.Helper()
	old, err := c.CoreV1().Pods("a").Get(c.t.Context(), p.Name, metav1.GetOptions{})
	c.check(err)
	p.ResourceVersion, p.UID = old.ResourceVersion, old.UID
	_, err = c.CoreV1().Pods("a").Update(c.t.Context(), p, metav1.UpdateOptions{})
	c.check(err)
	synctest.Wait()
}

// slices returns the endpoints of the service web as its slices have them.
func (c *cluster) slices() (out []string) {
	c.t.Helper()
	list, err := c.DiscoveryV1().EndpointSlices("a").List(c.t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
	c.check(err)
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			state := "unready"
			switch {
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				state = "ready"
			case e.Conditions.Terminating != nil && *e.Conditions.Terminating && e.Conditions.Serving != nil && *e.Conditions.Serving:
				state = "serving"
			}
			var ports []string
			for _, p := range s.Ports {
				ports = append(ports, fmt.Sprint(*p.Port))
			}
			out = append(out, e.Addresses[0]+":"+strings.Join(ports, "+")+" "+state)
		}
	}
	slices.Sort(out)
	return out
}

// old returns the same of its Endpoints.
func (c *cluster) old(service string) (out []string) {
	c.t.Helper()
	e, err := c.CoreV1().Endpoints("a").Get(c.t.Context(), service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return []string{"none"}
	}
	c.check(err)
	for _, s := range e.Subsets {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprint(p.Port))
		}
		for _, a := range s.Addresses {
			out = append(out, a.IP+":"+strings.Join(ports, "+")+" ready")
		}
		for _, a := range s.NotReadyAddresses {
			out = append(out, a.IP+":"+strings.Join(ports, "+")+" unready")
		}
	}
	return out
}

func (c *cluster) wantEndpoints(slicesHave, oldHas string) {
	c.t.Helper()
	if got := strings.Join(c.slices(), ", "); got != slicesHave {
		c.t.Errorf("slices have %s; want %s", got, slicesHave)
	}
	if got := strings.Join(c.old("web"), ", "); got != oldHas {
		c.t.Errorf("endpoints are %s; want %s", got, oldHas)
	}
}

func TestEndpointsFollowPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newServices(t)
		defer stop()
		c.add(webService())
		c.wantEndpoints("", "")
		c.add(backend(0, false), backend(1, true))
		c.wantEndpoints("10.244.0.1:8080 unready, 10.244.0.2:8080 ready", "10.244.0.2:8080 ready, 10.244.0.1:8080 unready")
		c.updatePod(backend(0, true))
		c.wantEndpoints("10.244.0.1:8080 ready, 10.244.0.2:8080 ready", "10.244.0.1:8080 ready, 10.244.0.2:8080 ready")
		ending := backend(0, true)
		ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
		c.updatePod(ending)
		c.wantEndpoints("10.244.0.1:8080 serving, 10.244.0.2:8080 ready", "10.244.0.2:8080 ready")
		c.check(c.CoreV1().Pods("a").Delete(t.Context(), ending.Name, metav1.DeleteOptions{}))
		synctest.Wait()
		c.wantEndpoints("10.244.0.2:8080 ready", "10.244.0.2:8080 ready")
		e, err := c.CoreV1().Endpoints("a").Get(t.Context(), "web", metav1.GetOptions{})
		c.check(err)
		if e.Labels["endpoints.kubernetes.io/managed-by"] != "endpoint-controller" || e.Labels["team"] != "x" || len(e.Labels) != 2 {
			t.Errorf("labels %v", e.Labels)
		}
		c.comesToRest()
		c.check(c.CoreV1().Services("a").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		if got := c.old("web"); got[0] != "none" {
			t.Errorf("endpoints of a service that is gone: %v", got)
		}
	})
}

// TestAPodThatFailedUnreadyIsNoEndpoint: upstream does not look at a pod's phase, and its address
// stayed although it may belong to another pod by then.
func TestAPodThatFailedUnreadyIsNoEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newServices(t)
		defer stop()
		c.add(webService(), backend(0, false))
		c.wantEndpoints("10.244.0.1:8080 unready", "10.244.0.1:8080 unready")
		failed := backend(0, false)
		failed.Status.Phase = v1.PodFailed
		c.updatePod(failed)
		c.wantEndpoints("", "")
	})
}

func TestManyEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for i := range 1100 {
			objs = append(objs, backend(i, i%20 != 0))
		}
		c, stop := newServices(t, objs...)
		defer stop()
		c.add(webService())
		if got := len(c.slices()); got != 1100 {
			t.Errorf("%d endpoints in slices", got)
		}
		e, err := c.CoreV1().Endpoints("a").Get(t.Context(), "web", metav1.GetOptions{})
		c.check(err)
		if n := len(c.old("web")); n != 1000 || e.Annotations[v1.EndpointsOverCapacity] != "truncated" {
			t.Errorf("%d endpoints, %v", n, e.Annotations)
		}
		if n := len(e.Subsets[0].Addresses); n != 1000 { // 1045 are ready
			t.Errorf("%d are ready", n)
		}
		c.comesToRest()
		// Within capacity again, the annotation goes.
		for i := range 101 {
			c.check(c.CoreV1().Pods("a").Delete(t.Context(), fmt.Sprintf("web-%04d", i), metav1.DeleteOptions{}))
			synctest.Wait()
		}
		e, err = c.CoreV1().Endpoints("a").Get(t.Context(), "web", metav1.GetOptions{})
		c.check(err)
		if n := len(c.old("web")); n != 999 || e.Annotations[v1.EndpointsOverCapacity] != "" || len(c.slices()) != 999 {
			t.Errorf("%d endpoints, %v, %d in slices", n, e.Annotations, len(c.slices()))
		}
		c.comesToRest()
	})
}

// TestForeignWritesAreUndone: somebody else changes or deletes what the controllers keep.
func TestForeignWritesAreUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newServices(t)
		defer stop()
		c.add(webService(), backend(0, true))
		want := "10.244.0.1:8080 ready"
		c.wantEndpoints(want, want)
		list, err := c.DiscoveryV1().EndpointSlices("a").List(t.Context(), metav1.ListOptions{})
		c.check(err)
		s := list.Items[0].DeepCopy()
		s.Endpoints = nil
		_, err = c.DiscoveryV1().EndpointSlices("a").Update(t.Context(), s, metav1.UpdateOptions{})
		c.check(err)
		e, err := c.CoreV1().Endpoints("a").Get(t.Context(), "web", metav1.GetOptions{})
		c.check(err)
		e.Subsets = nil
		_, err = c.CoreV1().Endpoints("a").Update(t.Context(), e, metav1.UpdateOptions{})
		c.check(err)
		synctest.Wait()
		c.wantEndpoints(want, want)
		c.check(c.DiscoveryV1().EndpointSlices("a").Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
		c.check(c.CoreV1().Endpoints("a").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		c.wantEndpoints(want, want)
		c.comesToRest()
	})
}

// TestConflictsOnEveryOtherWriteOfEndpoints: a conflict means that an informer is behind. Nobody is told.
func TestConflictsOnEveryOtherWriteOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newServices(t)
		defer stop()
		n := 0
		refuse := func(action k8stesting.Action) (bool, runtime.Object, error) {
			if n++; n%2 == 1 {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), "x", errors.New("on purpose"))
			}
			return false, nil, nil
		}
		c.PrependReactor("update", "endpoints", refuse)
		c.PrependReactor("update", "endpointslices", refuse)
		c.add(webService())
		for i := range 5 {
			c.add(backend(i, true))
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := len(c.slices()); got != i+1 || len(c.old("web")) != i+1 {
				t.Fatalf("%d endpoints of %d; %d in Endpoints", got, i+1, len(c.old("web")))
			}
		}
		if r := c.reasons(); len(r) > 0 {
			t.Errorf("events: %v", r)
		}
	})
}

func TestMirroring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newServices(t)
		defer stop()
		by := func(ips ...string) *v1.Endpoints {
			e := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{
				Namespace: "a", Name: "web", Labels: map[string]string{"l": "1"},
				Annotations: map[string]string{"note": "x", v1.EndpointsLastChangeTriggerTime: "y", v1.LastAppliedConfigAnnotation: "z"},
			}}
			s := v1.EndpointSubset{Ports: []v1.EndpointPort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}}}
			for _, ip := range ips {
				s.Addresses = append(s.Addresses, v1.EndpointAddress{IP: ip})
			}
			e.Subsets = []v1.EndpointSubset{s}
			return e
		}
		c.add(by("192.0.2.1", "2001:db8::1", "nonsense"))
		c.mirrors("")
		c.add(webService(func(s *v1.Service) { s.Spec.Selector = nil }))
		c.mirrors("192.0.2.1:80 ready, 2001:db8::1:80 ready")
		list, err := c.DiscoveryV1().EndpointSlices("a").List(t.Context(), metav1.ListOptions{})
		c.check(err)
		for _, s := range list.Items {
			if len(s.Annotations) != 1 || s.Labels["l"] != "1" || s.Labels[discoveryv1.LabelManagedBy] != "endpointslicemirroring-controller.k8s.io" {
				t.Errorf("%s: %v %v", s.Name, s.Annotations, s.Labels)
			}
		}
		if r := c.reasons(); !slices.Contains(r, "Endpoints Warning InvalidIPAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices") {
			t.Errorf("events: %v", r)
		}
		c.replaceEndpoints(by("192.0.2.2"))
		c.mirrors("192.0.2.2:80 ready")
		// Other ports: the slice is used again, so that the service is never without.
		moved := by("192.0.2.2")
		moved.Subsets[0].Ports[0].Port = 81
		c.replaceEndpoints(moved)
		c.mirrors("192.0.2.2:81 ready")
		skipped := by("192.0.2.2")
		skipped.Labels[discoveryv1.LabelSkipMirror] = "true"
		c.replaceEndpoints(skipped)
		c.mirrors("")
		c.replaceEndpoints(by("192.0.2.3"))
		c.mirrors("192.0.2.3:80 ready")
		c.comesToRest()
		c.check(c.CoreV1().Endpoints("a").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		c.mirrors("")
	})
}

func (c *cluster) replaceEndpoints(e *v1.Endpoints) {
	c.t.Helper()
	old, err := c.CoreV1().Endpoints("a").Get(c.t.Context(), e.Name, metav1.GetOptions{})
	c.check(err)
	e.ResourceVersion, e.UID = old.ResourceVersion, old.UID
	_, err = c.CoreV1().Endpoints("a").Update(c.t.Context(), e, metav1.UpdateOptions{})
	c.check(err)
	synctest.Wait()
}

func (c *cluster) mirrors(want string) {
	c.t.Helper()
	if got := strings.Join(c.slices(), ", "); got != want {
		c.t.Errorf("mirrored: %s; want %s", got, want)
	}
}

// TestLockOfAnOldLeaderIsLeftAlone: old clients elect their leader with Endpoints, without a service.
func TestLockOfAnOldLeaderIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "1", ResourceVersion: "1",
			Annotations: map[string]string{"control-plane.alpha.kubernetes.io/leader": "{}"}}}
		left := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "left", UID: "2", ResourceVersion: "2"}}
		c, stop := newServices(t, lock, left)
		defer stop()
		if got := c.old("web"); got != nil {
			t.Errorf("the lock: %v", got)
		}
		if got := c.old("left"); len(got) != 1 || got[0] != "none" {
			t.Errorf("Endpoints that their service left: %v", got)
		}
	})
}
