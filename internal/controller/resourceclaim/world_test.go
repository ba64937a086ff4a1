package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// run runs the controller over a fake API server until it is stopped.
func run(t *testing.T, client *fake.Clientset) (stop func()) {
	t.Helper()
	n := 0
	client.PrependReactor("create", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
		if c, ok := a.(ktesting.CreateAction).GetObject().(*resourcev1.ResourceClaim); ok && c.Name == "" {
			n++
			c.Name = fmt.Sprintf("%s%d", c.GenerateName, n)
			c.ResourceVersion = strconv.Itoa(n + 1) // without versions nobody knows whether the informer is behind
		}
		return false, nil, nil
	})
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := New(client, f, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func template() *resourcev1.ResourceClaimTemplate {
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "template"}}
	t.Spec.Labels, t.Spec.Annotations = map[string]string{"l": "1"}, map[string]string{"a": "2"}
	t.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}
	return t
}

func claims(t *testing.T, client *fake.Clientset) []resourcev1.ResourceClaim {
	t.Helper()
	list, err := client.ResourceV1().ResourceClaims("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestAClaimIsMadeOnce although its name cannot be written into the pod for a while.
func TestAClaimIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(template(), pod("p", makes("x", ""), makes("y", "")))
		failures := 3
		client.PrependReactor("patch", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
			failures--
			if failures >= 0 {
				return true, nil, errors.New("the API server is busy")
			}
			return false, nil, nil
		})
		defer run(t, client)()
		time.Sleep(time.Minute)
		synctest.Wait()
		all := claims(t, client)
		if len(all) != 2 {
			t.Fatalf("%d claims were made", len(all))
		}
		for _, c := range all {
			if c.Labels["l"] != "1" || c.Annotations["a"] != "2" || c.Spec.Devices.Requests[0].Exactly.DeviceClassName != "gpu" ||
				!metav1.IsControlledBy(&c, pod("p")) {
				t.Errorf("claim: %+v", c)
			}
		}
		p, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Status.ResourceClaimStatuses) != 2 || failures >= 0 {
			t.Errorf("%d failures left; the pod's claims: %+v", failures, p.Status.ResourceClaimStatuses)
		}
	})
}

// TestAMissingTemplateIsTold once, and heard of when it comes.
func TestAMissingTemplateIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("p", makes("x", "")))
		defer run(t, client)()
		time.Sleep(time.Minute)
		events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(events.Items) != 1 || events.Items[0].Reason != "FailedResourceClaimCreation" || events.Items[0].Count != 1 ||
			events.Items[0].Message != `PodResourceClaim x: resource claim template "template": not found` {
			t.Errorf("events: %+v", events.Items)
		}
		if _, err := client.ResourceV1().ResourceClaimTemplates("ns").Create(t.Context(), template(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(claims(t, client)); n != 1 {
			t.Errorf("there are %d claims", n)
		}
	})
}

// TestAPodThatIsOverLetsGo: its own claim goes, one that it shares with others stays theirs, and loses its devices with
// the last of them.
func TestAPodThatIsOverLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := its("own", made("x", "p"), allocated, protected, reserved("p"))
		shared := its("shared", allocated, protected, reserved("p", "q"))
		stale := its("stale", allocated, protected, reserved("long-gone"))
		client := fake.NewClientset(own, shared, stale, pod("p", makes("x", "own"), uses("shared"), onNode), pod("q", uses("shared"), onNode))
		defer run(t, client)()
		get := func(name string) *resourcev1.ResourceClaim {
			t.Helper()
			c, err := client.ResourceV1().ResourceClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		if c := get("stale"); len(c.Status.ReservedFor) != 0 || c.Status.Allocation != nil || len(c.Finalizers) != 1 {
			t.Errorf("a claim whose pod went while nobody looked: %+v", c)
		}
		p, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Phase = v1.PodFailed
		if _, err := client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "own", metav1.GetOptions{}); err == nil {
			t.Error("the claim that was made for it is still there")
		}
		if c := get("shared"); len(c.Status.ReservedFor) != 1 || c.Status.Allocation == nil {
			t.Errorf("the shared claim: %+v", c.Status)
		}
		if err := client.CoreV1().Pods("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c := get("shared"); len(c.Status.ReservedFor) != 0 || c.Status.Allocation != nil || len(c.Finalizers) != 1 {
			t.Errorf("the shared claim in the end: %+v", c)
		}
	})
}

// TestClaimsOfExtendedResourcesGo with their pods, whether the scheduler has got round to naming them there or not; and
// not because some other pod names them.
func TestClaimsOfExtendedResourcesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		special := func(name, pod string) *resourcev1.ResourceClaim {
			return its(name, made("", pod), allocated, protected, reserved(pod), func(c *resourcev1.ResourceClaim) {
				c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			})
		}
		names := func(claim string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
			}
		}
		client := fake.NewClientset(special("named", "p"), special("unnamed", "q"), special("kept", "r"),
			pod("p", names("named"), onNode), pod("q"), pod("r", names("kept"), onNode), pod("thief", names("kept"), onNode))
		defer run(t, client)()
		for _, name := range []string{"p", "q", "thief"} {
			p, err := client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.Status.Phase = v1.PodFailed
			if _, err := client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		left := claims(t, client)
		if len(left) != 1 || left[0].Name != "kept" || left[0].Status.Allocation == nil || len(left[0].Status.ReservedFor) != 1 {
			t.Errorf("there are %+v", left)
		}
	})
}

// TestAGroupHasClaims that are made once, whichever comes first: its pods, the group or the template. They stay while it
// is there, or one of its pods that runs.
func TestAGroupHasClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("p", inG, makes("x", "")), pod("q", inG, makes("x", "")))
		defer run(t, client)()
		if _, err := client.SchedulingV1beta1().PodGroups("ns").Create(t.Context(), group("g", "x"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(events.Items) != 1 || events.Items[0].Message != `PodGroupResourceClaim x: resource claim template "template": not found` {
			t.Errorf("events: %+v", events.Items)
		}
		if _, err := client.ResourceV1().ResourceClaimTemplates("ns").Create(t.Context(), template(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		all := claims(t, client)
		if len(all) != 1 {
			t.Fatalf("claims: %+v", all)
		}
		c := &all[0]
		if ref := metav1.GetControllerOf(c); ref == nil || ref.Kind != "PodGroup" || ref.APIVersion != "scheduling.k8s.io/v1beta1" || c.GenerateName != "g-x-" {
			t.Errorf("the claim: %+v", c)
		}
		g, err := client.SchedulingV1beta1().PodGroups("ns").Get(t.Context(), "g", metav1.GetOptions{})
		if err != nil || len(g.Status.ResourceClaimStatuses) != 1 || *g.Status.ResourceClaimStatuses[0].ResourceClaimName != c.Name {
			t.Errorf("the group: %v, %+v", err, g)
		}
		for _, name := range []string{"p", "q"} {
			p, err := client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || len(p.Status.ResourceClaimStatuses) != 1 || *p.Status.ResourceClaimStatuses[0].ResourceClaimName != c.Name {
				t.Errorf("pod %s: %v, %+v", name, err, p)
			}
		}

		allocated(c)
		reservedForGroup("g")(c)
		if _, err := client.ResourceV1().ResourceClaims("ns").UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		left := func() int {
			t.Helper()
			synctest.Wait()
			return len(claims(t, client)[0].Status.ReservedFor)
		}
		if left() != 1 {
			t.Error("it is taken back from the group at once")
		}
		end := func(name string) {
			t.Helper()
			p, err := client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.Status.Phase = v1.PodSucceeded
			if _, err := client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		end("p")
		if left() != 1 {
			t.Error("it is taken back when one pod is over")
		}
		if err := client.SchedulingV1beta1().PodGroups("ns").Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if left() != 1 {
			t.Error("it is taken back from a pod that runs")
		}
		end("q")
		if left() != 0 {
			t.Error("it is still reserved for a group that is gone")
		}
	})
}
