package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/test/fakecri"
	"wherry.dev/test/leaks"
)

type told struct {
	mu   sync.Mutex
	list []string
}

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func (e *told) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, reason+": "+fmt.Sprintf(format, args...))
}

func (e *told) has(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.list, func(s string) bool { return strings.Contains(s, text) })
}

func testConfig() Config {
	return Config{
		Name: "n1", Hostname: "n1", IPs: []string{"192.0.2.1"}, Register: true, MaxPods: 7, RootDir: "/", Port: func() int32 { return 10250 },
		ReportEvery: 5 * time.Minute, LeaseSeconds: 40, MaxImages: 50, Labels: map[string]string{"disk": "ssd"}, RuntimeVersion: "fake://1",
		KubeletVersion: "v1.37.0", Reserved: v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Mi")}, PodCIDR: "10.0.0.0/24",
		Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}},
	}
}

func play(t *testing.T, objs []runtime.Object, f func(t *testing.T, r *Reporter, rt *fakecri.Runtime, c *fake.Clientset, ev *told)) {
	synctest.Test(t, func(t *testing.T) {
		rt, client, ev := fakecri.New("busybox:latest"), fake.NewClientset(objs...), &told{}
		r, err := New(testConfig(), client, fakecri.Service{Runtime: rt}, fakecri.Images{Runtime: rt}, ev)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		wg.Go(func() { _ = r.RunLease(ctx) })
		f(t, r, rt, client, ev)
		cancel()
		wg.Wait()
	})
}

func getNode(t *testing.T, c *fake.Clientset) *v1.Node {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func ready(n *v1.Node) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c
		}
	}
	return v1.NodeCondition{}
}

func writes(c *fake.Clientset) int {
	n := 0
	for _, a := range c.Actions() {
		if a.GetResource().Resource == "nodes" && a.GetVerb() != "get" {
			n++
		}
	}
	return n
}

func TestNodeIsRegisteredAndReported(t *testing.T) {
	play(t, nil, func(t *testing.T, r *Reporter, rt *fakecri.Runtime, c *fake.Clientset, ev *told) {
		<-r.Ready()
		synctest.Wait()
		n := getNode(t, c)
		if n.Labels["disk"] != "ssd" || n.Labels[v1.LabelHostname] != "n1" || len(n.Spec.Taints) != 1 || n.Spec.PodCIDR != "10.0.0.0/24" {
			t.Errorf("%+v", n)
		}
		cond := ready(n)
		if cond.Status != v1.ConditionTrue || cond.Reason != "KubeletReady" || cond.Message != "kubelet is posting ready status" || len(n.Status.Conditions) != 4 {
			t.Errorf("%+v", n.Status.Conditions)
		}
		capacity, allocatable := n.Status.Capacity, n.Status.Allocatable
		free := capacity.Memory().DeepCopy()
		free.Sub(resource.MustParse("100Mi"))
		if capacity.Pods().Value() != 7 || capacity.Cpu().IsZero() || allocatable.Memory().Cmp(free) > 0 {
			t.Errorf("%v %v", capacity, allocatable)
		}
		if n.Status.NodeInfo.KernelVersion == "" || n.Status.NodeInfo.ContainerRuntimeVersion != "fake://1" || len(n.Status.Images) != 1 || len(n.Status.Addresses) != 2 {
			t.Errorf("%+v", n.Status)
		}
		before := writes(c)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if now := writes(c); now != before {
			t.Errorf("%d writes although nothing changed", now-before)
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if now := writes(c); now != before+1 {
			t.Errorf("%d heartbeats in five minutes", now-before)
		}
		l, err := c.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || *l.Spec.LeaseDurationSeconds != 40 || *l.Spec.HolderIdentity != "n1" || time.Since(l.Spec.RenewTime.Time) > 10*time.Second {
			t.Errorf("%+v, %v", l, err)
		}
		for _, want := range []string{"Starting: Starting kubelet.", "NodeReady: Node n1 status is now: NodeReady", "NodeHasSufficientMemory"} {
			if !ev.has(want) {
				t.Errorf("no event %q in %v", want, ev.list)
			}
		}
		rt.SetNotReady("NetworkPluginNotReady")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		cond = ready(getNode(t, c))
		if cond.Status != v1.ConditionFalse || cond.Reason != "KubeletNotReady" || !strings.Contains(cond.Message, "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady") {
			t.Errorf("%+v", cond)
		}
		rt.SetNotReady("")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if ready(getNode(t, c)).Status != v1.ConditionTrue || !ev.has("NodeNotReady") {
			t.Errorf("%+v", ready(getNode(t, c)))
		}
	})
}

func TestNodeThatExistsKeepsWhatOthersWrote(t *testing.T) {
	old := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "x", Labels: map[string]string{
			"theirs": "1", "disk": "hdd", v1.LabelHostname: "old", "beta.kubernetes.io/os": "plan9", v1.LabelTopologyZone: "theirs",
		}, Annotations: map[string]string{"alpha.kubernetes.io/provided-node-ip": "192.0.2.9"}},
		Spec: v1.NodeSpec{Unschedulable: true},
		Status: v1.NodeStatus{
			Conditions: []v1.NodeCondition{{Type: "Theirs", Status: v1.ConditionTrue}},
			NodeInfo:   v1.NodeSystemInfo{BootID: "another"}, Capacity: v1.ResourceList{"example.com/gpu": resource.MustParse("2")},
		},
	}
	play(t, []runtime.Object{old}, func(t *testing.T, r *Reporter, _ *fakecri.Runtime, c *fake.Clientset, ev *told) {
		<-r.Ready()
		synctest.Wait()
		n := getNode(t, c)
		if n.Labels["theirs"] != "1" || n.Labels["disk"] != "hdd" || !n.Spec.Unschedulable || len(n.Spec.Taints) != 0 || len(n.Status.Conditions) != 5 || n.Status.Capacity["example.com/gpu"] != resource.MustParse("2") || n.Status.Allocatable["example.com/gpu"] != resource.MustParse("2") {
			t.Errorf("%+v", n)
		}
		if n.Labels[v1.LabelHostname] != "n1" || n.Labels["beta.kubernetes.io/os"] != "linux" || n.Labels[v1.LabelTopologyZone] != "theirs" || n.Labels[v1.LabelArchStable] == "" {
			t.Errorf("default labels: %v", n.Labels)
		}
		if _, ok := n.Annotations["alpha.kubernetes.io/provided-node-ip"]; ok {
			t.Error("there is no cloud controller, and its annotation is still there")
		}
		if !ev.has("Rebooted: Node n1 has been rebooted") {
			t.Errorf("%v", ev.list)
		}
		if err := c.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.Lost()
		synctest.Wait()
		if ready(getNode(t, c)).Status != v1.ConditionTrue {
			t.Error("the node did not come back")
		}
	})
}

func FuzzParseMeminfo(f *testing.F) {
	f.Add([]byte("MemTotal:       1024 kB\nHugePages_Total:       0\n"))
	f.Fuzz(func(t *testing.T, data []byte) { parseMeminfo(data) })
}

func TestTaintsAndAnnotationsAtRegistration(t *testing.T) {
	cfg := testConfig()
	cfg.Unschedulable, cfg.ExternalCloud, cfg.GivenIPs = true, true, "192.0.2.1"
	r, err := New(cfg, nil, nil, nil, &told{})
	if err != nil {
		t.Fatal(err)
	}
	n := r.object()
	var keys []string
	for i := range n.Spec.Taints {
		keys = append(keys, n.Spec.Taints[i].ToString())
	}
	want := []string{"k:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule", "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"}
	if !slices.Equal(keys, want) || n.Annotations["alpha.kubernetes.io/provided-node-ip"] != "192.0.2.1" || !n.Spec.Unschedulable {
		t.Errorf("%q %v", keys, n.Annotations)
	}
}

func TestLabelsOfZoneFollowTheFlag(t *testing.T) {
	cfg := testConfig()
	cfg.Labels = map[string]string{v1.LabelTopologyZone: "z2", v1.LabelInstanceTypeStable: "", "disk": "ssd"}
	c := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
		v1.LabelTopologyZone: "z1", v1.LabelInstanceTypeStable: "big", v1.LabelTopologyRegion: "r1",
	}}})
	r, err := New(cfg, c, nil, nil, &told{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.register(t.Context(), v1.NodeStatus{}); err != nil {
		t.Fatal(err)
	}
	n := getNode(t, c)
	_, has := n.Labels[v1.LabelInstanceTypeStable]
	if n.Labels[v1.LabelTopologyZone] != "z2" || n.Labels[v1.LabelTopologyRegion] != "r1" || n.Labels["disk"] != "" || has {
		t.Errorf("%v", n.Labels)
	}
}

func TestAddressesWithACloudController(t *testing.T) {
	cfg := testConfig()
	cfg.ExternalCloud, cfg.IPs, cfg.GivenIPs = true, []string{"192.0.2.1"}, ""
	r, err := New(cfg, nil, nil, nil, &told{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.addresses(); len(got) != 1 || got[0].Type != v1.NodeHostName {
		t.Errorf("before it has spoken: %v", got)
	}
	theirs := []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}}
	r.reported = &v1.Node{Status: v1.NodeStatus{Addresses: theirs}}
	st := v1.NodeStatus{Addresses: r.addresses()}
	if r.merge(&st); !slices.Equal(st.Addresses, theirs) {
		t.Errorf("its addresses are not kept: %v", st.Addresses)
	}
	r.cfg.ExternalCloud, r.cfg.IPs = false, []string{"192.0.2.1", "2001:db8::1"}
	st.Addresses = r.addresses()
	if r.merge(&st); len(st.Addresses) != 3 || st.Addresses[1].Address != "2001:db8::1" || st.Addresses[2].Type != v1.NodeHostName {
		t.Errorf("without one: %v", st.Addresses)
	}
}

func TestDeclaredFeatures(t *testing.T) {
	cfg := testConfig()
	cfg.Features = map[string]bool{"ExtendWebSocketsToKubelet": true, "UserNamespacesHostNetworkSupport": true}
	r, err := New(cfg, nil, nil, nil, &told{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.declared(nil); !slices.Equal(got, []string{"ExtendWebSocketsToKubelet"}) {
		t.Errorf("%q", got)
	}
	if got := r.declared(&runtimeapi.RuntimeFeatures{UserNamespacesHostNetwork: true}); len(got) != 2 {
		t.Errorf("with a runtime that can do it: %q", got)
	}
}

// TestAdvertisedResourceBecomesAllocatable covers what operators do without a device plugin.
func TestAdvertisedResourceBecomesAllocatable(t *testing.T) {
	play(t, nil, func(t *testing.T, r *Reporter, _ *fakecri.Runtime, c *fake.Clientset, _ *told) {
		<-r.Ready()
		synctest.Wait()
		advertise := func(n *v1.Node, change func(v1.ResourceList)) {
			n = n.DeepCopy()
			change(n.Status.Capacity)
			if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			r.Observe(n) // by the watch
			synctest.Wait()
		}
		advertise(getNode(t, c), func(l v1.ResourceList) { l["example.com/dongle"] = resource.MustParse("4") })
		n := getNode(t, c)
		if n.Status.Capacity["example.com/dongle"] != resource.MustParse("4") || n.Status.Allocatable["example.com/dongle"] != resource.MustParse("4") {
			t.Errorf("%v, %v", n.Status.Capacity, n.Status.Allocatable)
		}
		advertise(n, func(l v1.ResourceList) { delete(l, "example.com/dongle") })
		n = getNode(t, c)
		if _, ok := n.Status.Allocatable["example.com/dongle"]; ok || len(n.Status.Capacity) == 0 {
			t.Errorf("it was taken away: %v, %v", n.Status.Capacity, n.Status.Allocatable)
		}
	})
}

func TestLocalStorageIsReportedUnlessSwitchedOff(t *testing.T) {
	for off, want := range map[bool]bool{false: true, true: false} {
		cfg := testConfig()
		cfg.NoLocalStorage = off
		r, err := New(cfg, nil, nil, nil, &told{})
		if err != nil {
			t.Fatal(err)
		}
		capacity, allocatable := r.resources()
		_, has := capacity[v1.ResourceEphemeralStorage]
		if _, also := allocatable[v1.ResourceEphemeralStorage]; has != want || also != want {
			t.Errorf("switched off %v: %v %v", off, capacity, allocatable)
		}
	}
}

func TestLargestImagesAreReported(t *testing.T) {
	var imgs []*runtimeapi.Image
	for i := range 60 {
		imgs = append(imgs, &runtimeapi.Image{Id: fmt.Sprint(i), Size: uint64(i), RepoTags: []string{"1", "2", "3", "4", "5", "6"}, RepoDigests: []string{"digest"}})
	}
	got := imageList(imgs, 50)
	if len(got) != 50 || got[0].SizeBytes != 59 || got[49].SizeBytes != 10 || len(got[0].Names) != 5 || got[0].Names[0] != "digest" {
		t.Errorf("%d images, the first %+v", len(got), got[0])
	}
	if got := imageList(imgs, -1); len(got) != 60 {
		t.Errorf("%d images without a limit", len(got))
	}
}

func TestRuntimeHandlersAndFeatures(t *testing.T) {
	r, err := New(testConfig(), nil, nil, nil, &told{})
	if err != nil {
		t.Fatal(err)
	}
	st := r.status(&runtimeapi.StatusResponse{
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}, {Name: ""},
		},
	}, nil, nil, time.Now())
	if len(st.RuntimeHandlers) != 2 || st.RuntimeHandlers[0].Name != "" || st.RuntimeHandlers[0].Features != nil ||
		!*st.RuntimeHandlers[1].Features.RecursiveReadOnlyMounts || *st.RuntimeHandlers[1].Features.UserNamespaces || !*st.Features.SupplementalGroupsPolicy {
		t.Errorf("%+v, %+v", st.RuntimeHandlers, st.Features)
	}
	if st.DaemonEndpoints.KubeletEndpoint.Port != testConfig().Port() {
		t.Errorf("%+v", st.DaemonEndpoints)
	}
}

// A node that was cut off, and whose conditions became unknown meanwhile, says at once that it is ready when it hears of that,
// and not with the next heartbeat, by which its pods would have been evicted.
func TestANodeThatWasCutOffSaysThatItIsReady(t *testing.T) {
	play(t, nil, func(t *testing.T, r *Reporter, _ *fakecri.Runtime, c *fake.Clientset, _ *told) {
		<-r.Ready()
		synctest.Wait()
		n := getNode(t, c)
		r.Observe(n)
		synctest.Wait()
		before := writes(c)
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = v1.ConditionUnknown, "NodeStatusUnknown"
		}
		n, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.Observe(n)
		synctest.Wait()
		n = getNode(t, c)
		for _, cond := range n.Status.Conditions {
			if cond.Status == v1.ConditionUnknown {
				t.Errorf("%+v", cond)
			}
		}
		if ready(n).Status != v1.ConditionTrue {
			t.Errorf("%+v", n.Status.Conditions)
		}
		r.Observe(n)
		synctest.Wait()
		if now := writes(c); now > before+3 { // the test's, an attempt to create it, and the patch
			t.Errorf("%d writes", now-before)
		}
	})
}

func TestCordonIsTold(t *testing.T) {
	play(t, nil, func(t *testing.T, r *Reporter, _ *fakecri.Runtime, c *fake.Clientset, ev *told) {
		<-r.Ready()
		n := getNode(t, c)
		r.Observe(n)
		n = n.DeepCopy()
		n.Spec.Unschedulable = true
		r.Observe(n)
		if !ev.has("NodeNotSchedulable: Node n1 status is now: NodeNotSchedulable") {
			t.Errorf("%q", ev.list)
		}
		n = n.DeepCopy()
		n.Spec.Unschedulable = false
		r.Observe(n)
		if !ev.has("NodeSchedulable: Node n1 status is now: NodeSchedulable") {
			t.Errorf("%q", ev.list)
		}
	})
}

func TestNodeThatMayNotBeCreatedIsFound(t *testing.T) {
	old := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	synctest.Test(t, func(t *testing.T) {
		rt, client := fakecri.New(), fake.NewClientset(old)
		client.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(v1.Resource("nodes"), "n1", nil)
		})
		r, err := New(testConfig(), client, fakecri.Service{Runtime: rt}, fakecri.Images{Runtime: rt}, &told{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		<-r.Ready()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSwapIsReported(t *testing.T) {
	for meminfo, want := range map[string]int64{
		"MemTotal:  1024 kB\nSwapTotal: 2048 kB\nSwapFree: 1 kB\n": 2 << 20, "MemTotal: 1024 kB\nSwapTotal: 0 kB\n": 0, "MemTotal: 1024 kB\n": 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, client := fakecri.New(), fake.NewClientset()
			r, err := New(testConfig(), client, fakecri.Service{Runtime: rt}, fakecri.Images{Runtime: rt}, &told{})
			if err != nil {
				t.Fatal(err)
			}
			r.facts.info.Swap = nil
			if err := r.facts.ofMemory([]byte(meminfo)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = r.Run(ctx) })
			synctest.Wait()
			st := getNode(t, client).Status
			cancel()
			wg.Wait()
			if got := st.NodeInfo.Swap; (got == nil) != (want == 0) || got != nil && *got.Capacity != want {
				t.Errorf("%q: %+v", meminfo, got)
			}
			if q := st.Capacity[v1.ResourceMemory]; q.Value() != 1<<20 {
				t.Errorf("memory: %s", q.String())
			}
		})
	}
	if (&facts{}).ofMemory([]byte("SwapTotal: 1 kB\n")) == nil {
		t.Error("a machine without memory")
	}
}

func TestHostIP(t *testing.T) {
	for given, want := range map[string]string{
		"192.0.2.1": "[192.0.2.1]", "192.0.2.1,2001:db8::1": "[192.0.2.1 2001:db8::1]", "2001:db8::1, 192.0.2.1": "[2001:db8::1 192.0.2.1]",
		"x": "not an IP", "192.0.2.1,192.0.2.2": "two of different families", "192.0.2.1,2001:db8::1,192.0.2.2": "two of different families",
	} {
		got, err := HostIP(given)
		if text := fmt.Sprint(got, " ", err); !strings.Contains(text, want) {
			t.Errorf("%q: %s, want %s", given, text, want)
		}
	}
	if got, err := HostIP(""); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// Labels that came while the status was being determined used to be lost, or the status was: each
// read the node, changed its part, and stored it.
func TestLabelsAndStatusDoNotLoseEachOther(t *testing.T) {
	rt := fakecri.New("busybox:latest")
	r, err := New(testConfig(), nil, fakecri.Service{Runtime: rt}, fakecri.Images{Runtime: rt}, &told{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		var both sync.WaitGroup
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: fmt.Sprint(i + 10), Labels: map[string]string{"i": fmt.Sprint(i)}}}
		both.Go(func() { r.Observe(n) })
		both.Go(func() { r.withStatus(v1.NodeStatus{Phase: v1.NodePhase(n.Labels["i"])}) })
		both.Wait()
		if got := r.Node(); got.Labels["i"] != n.Labels["i"] || string(got.Status.Phase) != n.Labels["i"] {
			t.Fatalf("after %d: labels %v, status of %s", i, got.Labels, got.Status.Phase)
		}
	}
	was := r.Node().DeepCopy()
	was.ResourceVersion, was.Labels = "9", nil
	r.Observe(was) // a watch that lags behind
	if r.Node().Labels == nil {
		t.Error("an old version took the place of the newest")
	}
}

// A lease that was made before its node was registered had no owner for ten seconds: if the node was deleted meanwhile, it
// stayed.
func TestALeaseThatWasThereBeforeItsNodeGetsItsOwnerSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		r, err := New(testConfig(), client, nil, nil, &told{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.RunLease(ctx) })
		owners := func() int {
			synctest.Wait()
			l, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(l.OwnerReferences)
		}
		if n := owners(); n != 0 {
			t.Errorf("%d owners before the node is there", n)
		}
		r.node.Store(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}})
		time.Sleep(time.Second)
		if n := owners(); n != 1 {
			t.Errorf("%d owners a second after the node is there", n)
		}
		cancel()
		wg.Wait()
	})
}

// A report that was determined before somebody asked does not count, and one that fails is none.
func TestWrittenIsWhatIsSoFromNowOn(t *testing.T) {
	play(t, nil, func(t *testing.T, r *Reporter, _ *fakecri.Runtime, c *fake.Clientset, _ *told) {
		<-r.Ready()
		synctest.Wait()
		var inUse atomic.Pointer[[]v1.UniqueVolumeName]
		inUse.Store(&[]v1.UniqueVolumeName{})
		began, goOn := make(chan struct{}), make(chan struct{})
		slow := true
		r.cfg.VolumesInUse = func([]v1.UniqueVolumeName) []v1.UniqueVolumeName {
			now := *inUse.Load()
			if slow {
				slow = false
				close(began)
				<-goOn
			}
			return now
		}
		r.Trigger()
		<-began // the report under way has read that nothing is in use
		inUse.Store(&[]v1.UniqueVolumeName{"v"})
		fails := true
		c.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			defer func() { fails = false }()
			return fails, nil, errors.New("not now")
		})
		ended := make(chan error, 1)
		go func() {
			_, err := r.Written(t.Context())
			ended <- err
		}()
		synctest.Wait()
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := getNode(t, c).Status.VolumesInUse; !slices.Equal(got, []v1.UniqueVolumeName{"v"}) || fails {
			t.Errorf("it is written that %q are in use", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Written(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("nobody waits any more: %v", err)
		}
	})
}
