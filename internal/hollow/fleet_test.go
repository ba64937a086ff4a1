package hollow_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/hollow"
)

func TestNodesAreReadyWithLeasesLabelsAndAddressesOfTheirOwn(t *testing.T) {
	s := startServer(t)
	s.play(30, func(c *hollow.Config) {
		c.Zones, c.CPU, c.Labels = []string{"a", "b"}, resource.MustParse("3920m"), map[string]string{"disk": "fast"}
		c.Taints = []v1.Taint{{Key: "only", Value: "tests", Effect: v1.TaintEffectNoSchedule}}
	})
	nodes, err := s.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: hollow.LabelHollow + "=true,disk=fast"})
	if err != nil || len(nodes.Items) != 30 {
		t.Fatal(len(nodes.Items), err)
	}
	seen := map[string]string{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if !nodeReady(n) || n.Spec.Taints[0].Key != "only" || n.Status.Allocatable.Cpu().String() != "3920m" || n.Status.Allocatable.Pods().Value() != 110 {
			t.Errorf("%s: %+v %+v", n.Name, n.Spec, n.Status)
		}
		if n.Labels[v1.LabelHostname] != n.Name || n.Labels[v1.LabelTopologyRegion] != "hollow" || !strings.Contains("ab", n.Labels[v1.LabelTopologyZone]) {
			t.Errorf("%s: %v", n.Name, n.Labels)
		}
		for _, own := range []string{n.Status.Addresses[0].Address, n.Spec.PodCIDR, n.Status.NodeInfo.MachineID} {
			if other := seen[own]; other != "" {
				t.Errorf("%s and %s have the same %s", n.Name, other, own)
			}
			seen[own] = n.Name
		}
		s.awaitLease(n.Name, time.Time{})
	}
	before := s.renewed("hollow-7")
	s.awaitLease("hollow-7", before)
	lease, err := s.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "hollow-7", metav1.GetOptions{})
	if err != nil || *lease.Spec.LeaseDurationSeconds != 4 || len(lease.OwnerReferences) != 1 {
		t.Errorf("%+v, %v", lease, err)
	}
}

func TestPodsRunWithAddressesOfTheirOwnAndEndWhenDeleted(t *testing.T) {
	s := startServer(t)
	s.play(6)
	const count = 36
	for i := range count {
		s.create(pod(fmt.Sprintf("p-%d", i), fmt.Sprintf("hollow-%d", i%6), func(p *v1.Pod) {
			probe := &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}}}
			p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = probe, probe
			p.Spec.InitContainers = []v1.Container{
				{Name: "first", Image: "example.com/init:1"}, {Name: "sidecar", Image: "example.com/sidecar:1", RestartPolicy: new(v1.ContainerRestartPolicyAlways)},
			}
		}))
	}
	seen := map[string]string{}
	for i := range count {
		p := s.await(fmt.Sprintf("p-%d", i), "ready", ready)
		ip, host := p.Status.PodIP, s.node(p.Spec.NodeName)
		if other := seen[ip]; other != "" || !netip.MustParsePrefix(host.Spec.PodCIDR).Contains(netip.MustParseAddr(ip)) {
			t.Errorf("%s has address %s, as has %q; its node has %s", p.Name, ip, other, host.Spec.PodCIDR)
		}
		seen[ip] = p.Name
		if p.Status.HostIP != host.Status.Addresses[0].Address || p.Status.StartTime == nil || len(p.Status.ContainerStatuses[0].ContainerID) != len("hollow://")+64 {
			t.Errorf("%+v", p.Status)
		}
	}
	if err := s.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		s.await(fmt.Sprintf("p-%d", i), "gone", gone)
	}
}

func TestAPodThatHasToWaitBeforeItEndsWaits(t *testing.T) {
	s := startServer(t)
	s.play(1)
	s.create(pod("slow", "hollow-0", func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 2}}}
	}))
	s.await("slow", "ready", ready)
	began := time.Now()
	if err := s.CoreV1().Pods("default").Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await("slow", "terminating, or gone already", func(p *v1.Pod) bool { return p == nil || p.DeletionTimestamp != nil })
	s.await("slow", "gone", gone)
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("its hook sleeps for 2s, and it was gone after %s", took)
	}
}

func TestPodsEndByThemselvesAsTheirAnnotationsSay(t *testing.T) {
	s := startServer(t)
	s.play(1)
	never := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	soon := annotated(hollow.AnnotationExitAfter, "50ms")
	s.create(pod("done", "hollow-0", never, soon))
	s.create(pod("failed", "hollow-0", never, soon, annotated(hollow.AnnotationExitCode, "3")))
	s.create(pod("again", "hollow-0", soon))
	s.create(pod("typo", "hollow-0", annotated(hollow.AnnotationExitAfter, "soon")))
	done := s.await("done", "succeeded", phase(v1.PodSucceeded))
	if end := done.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Completed" {
		t.Errorf("%+v", done.Status)
	}
	failed := s.await("failed", "failed", phase(v1.PodFailed))
	if end := failed.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 {
		t.Errorf("%+v", failed.Status)
	}
	s.await("again", "restarted", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	s.await("typo", "held back", func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		w := p.Status.ContainerStatuses[0].State.Waiting
		return w != nil && w.Reason == "CreateContainerConfigError" && strings.Contains(w.Message, "write it as 90s")
	})
}

func TestANodeRefusesWhatItHasNoRoomFor(t *testing.T) {
	s := startServer(t)
	s.play(1, func(c *hollow.Config) { c.CPU = resource.MustParse("1") })
	s.create(pod("large", "hollow-0", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
	}))
	if p := s.await("large", "refused", phase(v1.PodFailed)); p.Status.Reason != "OutOfcpu" {
		t.Errorf("%+v", p.Status)
	}
}

func TestANodeThatFailsIsSilentUntilItComesBack(t *testing.T) {
	s := startServer(t)
	s.play(3)
	kept := s.create(pod("kept", "hollow-1"))
	s.create(pod("left", "hollow-1"))
	s.await("kept", "ready", ready)
	s.await("left", "ready", ready)
	s.awaitLease("hollow-1", time.Time{})
	s.annotate("hollow-1", hollow.AnnotationFail, "true")
	s.create(pod("bystander", "hollow-2"))
	s.await("bystander", "ready", ready)
	failed := time.Now()
	s.awaitLease("hollow-0", failed.Add(2*time.Second)) // the others go on
	if last := s.renewed("hollow-1"); last.After(failed) {
		t.Errorf("failed before %s, and renewed its lease at %s", failed, last)
	}
	if err := s.CoreV1().Pods("default").Delete(t.Context(), "left", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create(pod("late", "hollow-1"))
	s.awaitLease("hollow-0", time.Now())
	if p := s.await("late", "there", func(p *v1.Pod) bool { return p != nil }); p.Status.StartTime != nil {
		t.Errorf("a silent node reports a pod: %+v", p.Status)
	}
	s.await("left", "there", func(p *v1.Pod) bool { return p != nil && p.DeletionTimestamp != nil })

	s.annotate("hollow-1", hollow.AnnotationFail, "")
	s.await("late", "ready", ready)
	s.await("left", "gone", gone)
	s.awaitLease("hollow-1", failed)
	p := s.await("kept", "ready", ready)
	if p.UID != kept.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("what ran on did not: %+v", p.Status)
	}
}

func TestTheNextFleetTakesNodesAndPodsOver(t *testing.T) {
	s := startServer(t)
	stop := s.play(2)
	s.create(pod("runs", "hollow-0"))
	s.create(pod("own-network", "hollow-0", func(p *v1.Pod) { p.Spec.HostNetwork = true }))
	s.create(pod("ends", "hollow-0", annotated(hollow.AnnotationExitAfter, "2s"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	s.create(pod("ended", "hollow-1", annotated(hollow.AnnotationExitAfter, "0s"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	before := map[string]*v1.Pod{
		"runs": s.await("runs", "ready", ready), "own-network": s.await("own-network", "ready", ready), "ended": s.await("ended", "succeeded", phase(v1.PodSucceeded)),
	}
	s.await("ends", "ready", ready)
	was := s.node("hollow-0")
	stop()
	s.play(2)
	s.create(pod("new", "hollow-0"))
	fresh := s.await("new", "ready", ready)
	for name, old := range before {
		p := s.await(name, "there", func(p *v1.Pod) bool { return p != nil })
		if p.ResourceVersion != old.ResourceVersion {
			t.Errorf("%s was written again:\n%+v\nbefore\n%+v", name, p.Status, old.Status)
		}
		if p.Status.PodIP == fresh.Status.PodIP {
			t.Errorf("%s has the address of %s", fresh.Name, name)
		}
	}
	s.await("ends", "succeeded", phase(v1.PodSucceeded))
	now := s.node("hollow-0")
	if now.UID != was.UID || !reflect.DeepEqual(now.Status.NodeInfo, was.Status.NodeInfo) || !nodeReady(now) {
		t.Errorf("%+v, before %+v", now, was)
	}
}

func TestADeletedNodeIsRegisteredAgain(t *testing.T) {
	s := startServer(t)
	s.play(1)
	was := s.node("hollow-0")
	if err := s.CoreV1().Nodes().Delete(t.Context(), "hollow-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitNode("hollow-0", "registered again", func(n *v1.Node) bool { return nodeReady(n) && n.UID != was.UID })
}

func TestFleetsSideBySide(t *testing.T) {
	s := startServer(t)
	s.play(2)
	f, err := hollow.New(config(2, func(c *hollow.Config) { c.NamePrefix = "other-" }), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another network") {
		t.Errorf("two fleets have the same addresses: %v", err)
	}
	stop := s.play(2, func(c *hollow.Config) {
		c.NamePrefix, c.NodeCIDR, c.PodCIDR = "other-", netip.MustParsePrefix("10.193.0.0/16"), netip.MustParsePrefix("10.64.0.0/10")
		c.Cleanup = true
	})
	s.create(pod("a", "hollow-1"))
	s.create(pod("b", "other-1"))
	s.await("a", "ready", ready)
	s.await("b", "ready", ready)
	stop()
	s.awaitNode("other-1", "deleted", func(n *v1.Node) bool { return n == nil })
	if !nodeReady(s.node("hollow-1")) {
		t.Error("the end of one fleet touched the other")
	}
}

func TestANodeThatIsNotHollowIsLeftAlone(t *testing.T) {
	s := startServer(t)
	real := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hollow-0"}}
	if _, err := s.CoreV1().Nodes().Create(t.Context(), real, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f, err := hollow.New(config(1, func(c *hollow.Config) { c.Cleanup = true }), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--name-prefix") {
		t.Errorf("took somebody else's node: %v", err)
	}
	if n := s.node("hollow-0"); n.Labels[hollow.LabelHollow] != "" {
		t.Errorf("%+v", n)
	}
}
