package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"wherry.dev/internal/kubelet/plugins"
)

// driver is a real server of the API, which keeps what is prepared.
type driver struct {
	drav1.UnsafeDRAPluginServer
	t      *testing.T
	name   string
	socket string
	server *grpc.Server

	mu       sync.Mutex
	prepared map[string]int // by claim, how often
	calls    []string
	// fail, if not nil, is asked before a claim is prepared or taken back.
	fail func(method, claim string) error
	// answer, if not nil, changes what it says.
	answer func(*drav1.NodePrepareResourcesResponse)
	block  chan struct{} // if not nil, calls wait for it
}

func startDriver(t *testing.T, m *Manager, name string, versions ...string) *driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &driver{t: t, name: name, socket: filepath.Join(dir, "s"), prepared: map[string]int{}}
	d.serve()
	t.Cleanup(func() { d.server.Stop() })
	if len(versions) == 0 {
		versions = []string{drav1.DRAPluginService}
	}
	if err := m.Register(t.Context(), d.plugin(versions...)); err != nil {
		t.Fatal(err)
	}
	return d
}

// startDriverServer starts a server with other services of a driver, and returns its socket.
func startDriverServer(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return filepath.Join(dir, "s")
}

func (d *driver) serve() {
	d.t.Helper()
	l, err := new(net.ListenConfig).Listen(d.t.Context(), "unix", d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.server = grpc.NewServer()
	drav1.RegisterDRAPluginServer(d.server, d)
	drav1beta1.RegisterDRAPluginServer(d.server, drav1beta1.V1ServerWrapper{DRAPluginServer: d})
	go func() { _ = d.server.Serve(l) }()
}

func (d *driver) plugin(versions ...string) plugins.Plugin {
	return plugins.Plugin{Type: "DRAPlugin", Name: d.name, Endpoint: d.socket, Versions: versions}
}

func (d *driver) enter(ctx context.Context, method string, claims []*drav1.Claim) error {
	d.mu.Lock()
	block := d.block
	names := []string{}
	for _, c := range claims {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	d.calls = append(d.calls, method+" "+strings.Join(names, " "))
	d.mu.Unlock()
	if block == nil {
		return nil
	}
	select {
	case <-block:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *driver) NodePrepareResources(ctx context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	if err := d.enter(ctx, "prepare", r.Claims); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		if d.fail != nil {
			if err := d.fail("prepare", c.Name); err != nil {
				out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Error: err.Error()}
				continue
			}
		}
		d.prepared[c.Name]++
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{
			{RequestNames: []string{"one"}, PoolName: "pool", DeviceName: "a", CdiDeviceIds: []string{d.name + "/gpu=" + c.Name + "-a"}},
			{RequestNames: []string{"some/sub"}, PoolName: "pool", DeviceName: "b", CdiDeviceIds: []string{d.name + "/gpu=" + c.Name + "-b"}},
			{PoolName: "pool", DeviceName: "all", CdiDeviceIds: []string{d.name + "/gpu=" + c.Name + "-all"}},
		}}
	}
	if d.answer != nil {
		d.answer(out)
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(ctx context.Context, r *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	if err := d.enter(ctx, "unprepare", r.Claims); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
		if d.fail != nil {
			if err := d.fail("unprepare", c.Name); err != nil {
				out.Claims[c.Uid].Error = err.Error()
				continue
			}
		}
		delete(d.prepared, c.Name)
	}
	return out, nil
}

// set says which claims fail from now on.
func (d *driver) set(fail func(method, claim string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

// has returns the claims that are prepared.
func (d *driver) has() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(d.prepared)), " ")
}

func (d *driver) called() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := strings.Join(d.calls, ", ")
	d.calls = nil
	return out
}

func newManager(t *testing.T, dir string, objs ...runtime.Object) *Manager {
	t.Helper()
	m, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	m.Client = fake.NewClientset(objs...)
	return m
}

// again is the Manager after a restart of the kubelet; the drivers register again.
func again(t *testing.T, m *Manager, drivers ...*driver) *Manager {
	t.Helper()
	n, err := New(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	n.Client = m.Client
	for _, d := range drivers {
		if err := n.Register(t.Context(), d.plugin(drav1.DRAPluginService)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// allocated is a claim that pods may use, with devices of drivers.
func allocated(name string, users []string, drivers ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: "one", Driver: d, Pool: "pool", Device: "a",
		})
	}
	for _, u := range users {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: u, UID: types.UID(u)})
	}
	return c
}

func podWith(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: "for-" + c, ResourceClaimName: new(c)})
	}
	return p
}

func using(claims ...v1.ResourceClaim) *v1.Container {
	return &v1.Container{Name: "c", Resources: v1.ResourceRequirements{Claims: claims}}
}

func prepare(t *testing.T, m *Manager, pod *v1.Pod) {
	t.Helper()
	if err := m.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func unprepare(t *testing.T, m *Manager, pod *v1.Pod) {
	t.Helper()
	if err := m.Unprepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if m.Left(pod) {
		t.Error("something is left")
	}
}

func wantString(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func wantErr(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestAPodGetsItsDevices by the requests that its containers name, and gives them back.
func TestAPodGetsItsDevices(t *testing.T) {
	for _, version := range []string{drav1.DRAPluginService, drav1beta1.DRAPluginService} {
		t.Run(version, func(t *testing.T) {
			m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"), allocated("y", []string{"p"}, "gpu.example.com", "nic.example.com"))
			gpu, nic := startDriver(t, m, "gpu.example.com", version), startDriver(t, m, "nic.example.com", version, "v1.Other")
			p := podWith("p", "x", "y")
			prepare(t, m, p)
			wantString(t, "calls", gpu.called(), "prepare x y")
			wantString(t, "calls", nic.called(), "prepare y")
			prepare(t, m, p)
			wantString(t, "calls again", gpu.called()+nic.called(), "")
			for _, tc := range []struct {
				c    *v1.Container
				want string
			}{
				{using(), ""},
				{using(v1.ResourceClaim{Name: "for-x"}), "gpu.example.com/gpu=x-a gpu.example.com/gpu=x-b gpu.example.com/gpu=x-all"},
				{using(v1.ResourceClaim{Name: "for-x", Request: "one"}), "gpu.example.com/gpu=x-a gpu.example.com/gpu=x-all"},
				{using(v1.ResourceClaim{Name: "for-x", Request: "some"}), "gpu.example.com/gpu=x-b gpu.example.com/gpu=x-all"},
				{using(v1.ResourceClaim{Name: "for-x", Request: "one"}, v1.ResourceClaim{Name: "for-y", Request: "one"}),
					"gpu.example.com/gpu=x-a gpu.example.com/gpu=x-all gpu.example.com/gpu=y-a gpu.example.com/gpu=y-all nic.example.com/gpu=y-a nic.example.com/gpu=y-all"},
			} {
				ids, err := m.Container(p, tc.c)
				if err != nil {
					t.Fatal(err)
				}
				wantString(t, "devices", strings.Join(ids, " "), tc.want)
			}
			unprepare(t, m, p)
			wantString(t, "prepared", gpu.has()+nic.has(), "")
			_, err := m.Container(p, using(v1.ResourceClaim{Name: "for-x"}))
			wantErr(t, err, "resource claim x is not prepared")
		})
	}
}

// TestExtendedResourcesAreDevices of the claim that the scheduler made.
func TestExtendedResourcesAreDevices(t *testing.T) {
	its := allocated("made", []string{"p"}, "gpu.example.com")
	its.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: new(true)}}
	m := newManager(t, t.TempDir(), its)
	startDriver(t, m, "gpu.example.com")
	p := podWith("p")
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "made", RequestMappings: []v1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "one"}},
	}
	prepare(t, m, p)
	ids, err := m.Container(p, using())
	if err != nil {
		t.Fatal(err)
	}
	wantString(t, "devices", strings.Join(ids, " "), "gpu.example.com/gpu=made-a gpu.example.com/gpu=made-all")
	unprepare(t, m, p)
}

// TestASharedClaim is taken back with its last pod on the node.
func TestASharedClaim(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p", "q"}, "gpu.example.com"))
	d := startDriver(t, m, "gpu.example.com")
	p, q := podWith("p", "x"), podWith("q", "x")
	prepare(t, m, p)
	prepare(t, m, q)
	wantString(t, "calls", d.called(), "prepare x")
	wantString(t, "in use", fmt.Sprint(m.count()), "map[<any>:1 gpu.example.com:1]")
	unprepare(t, m, p)
	wantString(t, "calls", d.called(), "")
	if !m.Left(q) {
		t.Error("nothing is left of the other pod")
	}
	m = again(t, m, d)
	unprepare(t, m, q)
	wantString(t, "calls", d.called(), "unprepare x")
}

// TestAFileThatCannotBeRead may be that of any pod with claims: none of their ends is told before somebody has seen to it.
// Pods without claims do not notice.
func TestAFileThatCannotBeRead(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"), allocated("y", []string{"q"}, "gpu.example.com"))
	d := startDriver(t, m, "gpu.example.com")
	p, q, other := podWith("p", "x"), podWith("q", "y"), podWith("other")
	prepare(t, m, p)
	prepare(t, m, q)
	if err := os.WriteFile(m.path("uid-x"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = again(t, m, d)
	d.called()
	if _, err := m.Container(q, using(v1.ResourceClaim{Name: "for-y"})); err != nil {
		t.Error(err)
	}
	_, err := m.Container(p, using(v1.ResourceClaim{Name: "for-x"}))
	wantErr(t, err, "uid-x.json is corrupt")
	const want = "it cannot be told whether a driver still holds devices of the pod: prepared resource claim: record"
	wantErr(t, m.Unprepare(t.Context(), p), want)
	wantErr(t, m.Unprepare(t.Context(), q), want)
	wantString(t, "calls", d.called(), "unprepare y")
	wantErr(t, m.Prepare(t.Context(), p), "prepared resource claim: record")
	if !m.Left(p) || !m.Left(q) {
		t.Error("pods with claims are told to have ended")
	}
	unprepare(t, m, other)
	if err := os.Remove(m.path("uid-x")); err != nil {
		t.Fatal(err)
	}
	unprepare(t, m, p)
	unprepare(t, m, q)
}

// TestAClaimThatWasAllocatedAnew while an earlier pod has not ended here, as when somebody deleted that pod's object by
// force: a new pod must not get the earlier devices.
func TestAClaimThatWasAllocatedAnew(t *testing.T) {
	its := allocated("x", []string{"p"}, "gpu.example.com")
	m := newManager(t, t.TempDir(), its)
	d := startDriver(t, m, "gpu.example.com")
	prepare(t, m, podWith("p", "x"))
	its.Status.ReservedFor[0] = resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "q", UID: "q"}
	its.Status.Allocation.Devices.Results[0].Device = "b"
	if _, err := m.Client.ResourceV1().ResourceClaims("ns").Update(t.Context(), its, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	q := podWith("q", "x")
	wantErr(t, m.Prepare(t.Context(), q), "ResourceClaim x is still prepared with other devices, for a pod that has not ended on this node")
	if m.Left(q) {
		t.Error("it holds what it did not get")
	}
	d.called()
	unprepare(t, m, podWith("p", "x"))
	prepare(t, m, q)
	wantString(t, "calls", d.called(), "unprepare x, prepare x")
}

// TestClaimsThatAPodMustNotUse are not prepared, and nothing is left of the attempt.
func TestClaimsThatAPodMustNotUse(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*resourcev1.ResourceClaim, *v1.Pod)
		want   string
	}{
		"reserved for another": {func(c *resourcev1.ResourceClaim, _ *v1.Pod) { c.Status.ReservedFor[0].UID = "other" }, "pod p (p) is not allowed to use ResourceClaim x (uid-x)"},
		"not allocated":        {func(c *resourcev1.ResourceClaim, _ *v1.Pod) { c.Status.Allocation = nil }, "ResourceClaim x: not allocated"},
		"not there":            {func(_ *resourcev1.ResourceClaim, p *v1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = new("gone") }, `fetch ResourceClaim gone: resourceclaims.resource.k8s.io "gone" not found`},
		"somebody else's": {func(_ *resourcev1.ResourceClaim, p *v1.Pod) {
			p.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "t", ResourceClaimTemplateName: new("t")}
			p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "t", ResourceClaimName: new("x")}}
		}, "was not created for Pod ns/p"},
		"not made yet": {func(_ *resourcev1.ResourceClaim, p *v1.Pod) {
			p.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "t", ResourceClaimTemplateName: new("t")}
		}, "ResourceClaim not created yet"},
	} {
		t.Run(name, func(t *testing.T) {
			its, p := allocated("x", []string{"p"}, "gpu.example.com"), podWith("p", "x")
			tc.change(its, p)
			m := newManager(t, t.TempDir(), its)
			d := startDriver(t, m, "gpu.example.com")
			wantErr(t, m.Prepare(t.Context(), p), tc.want)
			if m.Left(p) || d.called() != "" {
				t.Error("the driver was called")
			}
		})
	}
}

// TestAPodWaitsForItsDriver, begins nothing meanwhile, and is woken when it comes.
func TestAPodWaitsForItsDriver(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
	woken := make(chan types.UID, 1)
	m.Retry = func(uid types.UID) { woken <- uid }
	p := podWith("p", "x")
	wantErr(t, m.Prepare(t.Context(), p), "DRA driver gpu.example.com is not registered")
	if m.Left(p) {
		t.Error("it cannot be deleted before the driver comes, which may be never")
	}
	d := startDriver(t, m, "gpu.example.com")
	if uid := <-woken; uid != p.UID {
		t.Errorf("%s was woken", uid)
	}
	prepare(t, m, p)
	if err := m.Deregister(t.Context(), d.plugin()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, m.Unprepare(t.Context(), p), "DRA driver gpu.example.com is not registered")
	if err := m.Register(t.Context(), d.plugin(drav1.DRAPluginService)); err != nil {
		t.Fatal(err)
	}
	<-woken
	unprepare(t, m, p)
}

// TestADriverThatFails for one claim has the others prepared, and is asked again about that one only.
func TestADriverThatFails(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"), allocated("y", []string{"p"}, "gpu.example.com"))
	d := startDriver(t, m, "gpu.example.com")
	bad := func(method string) func(string, string) error {
		return func(m, claim string) error {
			if m == method && claim == "y" {
				return errors.New("it is broken")
			}
			return nil
		}
	}
	d.set(bad("prepare"))
	p := podWith("p", "x", "y")
	wantErr(t, m.Prepare(t.Context(), p), "NodePrepareResources failed for ResourceClaim y: it is broken")
	if !m.Left(p) {
		t.Error("nothing is left to take back")
	}
	d.set(bad("unprepare"))
	prepare(t, m, p)
	wantErr(t, m.Unprepare(t.Context(), p), "NodeUnprepareResources failed for ResourceClaim y: it is broken")
	wantString(t, "prepared", d.has(), "y")
	d.called()
	d.set(nil)
	unprepare(t, m, p)
	wantString(t, "calls", d.called(), "unprepare y")
}

// TestADriverThatLies is refused.
func TestADriverThatLies(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(*drav1.NodePrepareResourcesResponse)
		want   string
	}{
		"about other claims": {func(r *drav1.NodePrepareResourcesResponse) {
			r.Claims["other"] = &drav1.NodePrepareResourceResponse{}
		}, "NodePrepareResources returned result for unknown claim UID other"},
		"about none": {func(r *drav1.NodePrepareResourcesResponse) { clear(r.Claims) }, "NodePrepareResources skipped ResourceClaim x"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
			d := startDriver(t, m, "gpu.example.com")
			d.answer = tc.answer
			p := podWith("p", "x")
			wantErr(t, m.Prepare(t.Context(), p), tc.want)
			_, err := m.Container(p, using(v1.ResourceClaim{Name: "for-x"}))
			wantErr(t, err, "is not prepared by driver gpu.example.com")
			unprepare(t, m, p)
			wantString(t, "prepared", d.has(), "")
		})
	}
}

// TestAKilledKubelet takes back what it may have had prepared, although it did not hear the answer; and prepares again
// what it is not sure of.
func TestAKilledKubelet(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
	d := startDriver(t, m, "gpu.example.com")
	p := podWith("p", "x")
	dying, die := context.WithCancel(t.Context())
	dead := make(chan struct{})
	d.answer = func(*drav1.NodePrepareResourcesResponse) { die(); <-dead }
	err := m.Prepare(dying, p)
	close(dead)
	if err == nil {
		t.Fatal("the answer came")
	}
	d.answer = nil
	wantString(t, "prepared", d.has(), "x")
	m = again(t, m, d)
	if !m.Left(p) {
		t.Fatal("nothing is known of it")
	}
	prepare(t, m, p)
	d.called()
	m = again(t, m, d)
	if ids, err := m.Container(p, using(v1.ResourceClaim{Name: "for-x"})); err != nil || len(ids) != 3 {
		t.Errorf("a container that is started again gets %v, %v", ids, err)
	}
	wantString(t, "calls", d.called(), "")
	prepare(t, m, p) // a new sandbox, as after a reboot
	wantString(t, "calls", d.called(), "prepare x")
	unprepare(t, m, p)
	wantString(t, "prepared", d.has(), "")
}

// TestADriverThatHangs keeps those waiting who share its claims, and nobody else. Who waits can stop.
func TestADriverThatHangs(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p", "q"}, "slow.example.com"), allocated("y", []string{"r"}, "fast.example.com"))
	slow := startDriver(t, m, "slow.example.com")
	startDriver(t, m, "fast.example.com")
	slow.block = make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- m.Prepare(t.Context(), podWith("p", "x")) }()
	for slow.called() == "" {
		time.Sleep(time.Millisecond)
	}
	prepare(t, m, podWith("r", "y"))
	impatient, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- m.Prepare(impatient, podWith("q", "x")) }()
	cancel()
	if err := <-waits; err == nil {
		t.Error("it was not held up")
	}
	close(slow.block)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	prepare(t, m, podWith("q", "x"))
	wantString(t, "calls", slow.called(), "")
}

// TestTheNewestDriverIsCalled while it is updated, and the older one when the newer one is gone.
func TestTheNewestDriverIsCalled(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
	older := startDriver(t, m, "gpu.example.com")
	newer := startDriver(t, m, "gpu.example.com")
	p := podWith("p", "x")
	prepare(t, m, p)
	wantString(t, "calls", older.called()+"|"+newer.called(), "|prepare x")
	if err := m.Deregister(t.Context(), newer.plugin()); err != nil {
		t.Fatal(err)
	}
	unprepare(t, m, p)
	wantString(t, "calls", older.called()+"|"+newer.called(), "unprepare x|")
	wantErr(t, m.Register(t.Context(), older.plugin(drav1.DRAPluginService)), "already registered for DRA driver plugin gpu.example.com")
	wantErr(t, m.Register(t.Context(), newer.plugin("v9.DRAPlugin")), "none of services supported by the plugin")
	wantErr(t, m.Register(t.Context(), newer.plugin()), "empty list of supported gRPC services")
}

// TestADriverThatDied wakes those who wait for it when it can be reached again.
func TestADriverThatDied(t *testing.T) {
	m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
	woken := make(chan types.UID, 10)
	m.Retry = func(uid types.UID) { woken <- uid }
	d := startDriver(t, m, "gpu.example.com")
	for in, _ := m.get("gpu.example.com"); in.conn.GetState().String() != "READY"; {
		time.Sleep(time.Millisecond)
	}
	d.server.Stop()
	for m.Connected("gpu.example.com") {
		time.Sleep(time.Millisecond)
	}
	p := podWith("p", "x")
	if err := m.Prepare(t.Context(), p); err == nil {
		t.Fatal("it was prepared")
	}
	d.serve()
	if uid := <-woken; uid != p.UID {
		t.Errorf("%s was woken", uid)
	}
	prepare(t, m, p)
}

// TestManyPodsAtOnce share claims in all ways; in the end nothing is prepared, and nothing was taken back under a pod.
func TestManyPodsAtOnce(t *testing.T) {
	var users []string
	for i := range 20 {
		users = append(users, fmt.Sprint("p", i))
	}
	m := newManager(t, t.TempDir(), allocated("x", users, "gpu.example.com"), allocated("y", users, "gpu.example.com", "nic.example.com"), allocated("z", users, "nic.example.com"))
	gpu, nic := startDriver(t, m, "gpu.example.com"), startDriver(t, m, "nic.example.com")
	var all sync.WaitGroup
	for i, u := range users {
		all.Go(func() {
			p := podWith(u, [][]string{{"x", "y"}, {"y", "z"}, {"x", "y", "z"}, {"z"}}[i%4]...)
			for range 10 {
				if err := m.Prepare(t.Context(), p); err != nil {
					t.Error(err)
					return
				}
				for _, c := range p.Spec.ResourceClaims {
					if _, err := m.Container(p, using(v1.ResourceClaim{Name: c.Name})); err != nil {
						t.Error(err)
					}
					name := *c.ResourceClaimName
					if name != "z" && !strings.Contains(gpu.has(), name) || name != "x" && !strings.Contains(nic.has(), name) {
						t.Errorf("%s is not prepared", name)
					}
				}
				if err := m.Unprepare(t.Context(), p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	wantString(t, "prepared", gpu.has()+nic.has(), "")
	if left, err := m.all(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
