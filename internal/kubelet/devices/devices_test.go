package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

const gpu = "example.com/gpu"

// fakePlugin is a plugin that serves at a socket of its own.
type fakePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	options   *pluginapi.DevicePluginOptions
	list      chan []*pluginapi.Device
	mute      error // of ListAndWatch, instead of devices
	shy       error // of GetDevicePluginOptions
	prefer    []string
	refuse    error
	answers   int // to Allocate, instead of one
	mu        sync.Mutex
	asked     []string // what Allocate and PreStartContainer were asked for
	available []string // what GetPreferredAllocation was asked about last
	server    *grpc.Server
	endpoint  string
}

func (p *fakePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return p.options, p.shy
}

func (p *fakePlugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if p.mute != nil {
		return p.mute
	}
	for {
		select {
		case list := <-p.list:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (p *fakePlugin) GetPreferredAllocation(_ context.Context, in *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	p.available = in.GetContainerRequests()[0].GetAvailableDeviceIDs()
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.prefer}}}, nil
}

func (p *fakePlugin) note(what string, ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, what+" "+strings.Join(ids, " "))
}

func (p *fakePlugin) Allocate(_ context.Context, in *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for range p.answers {
		ids := in.ContainerRequests[0].DevicesIds
		p.note("allocate", ids)
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"GPUS": strings.Join(ids, ",")},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/usr/lib/gpu", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}},
			Annotations: map[string]string{"example.com/gpus": "yes"}, CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/gpu=a"}},
		})
	}
	return out, p.refuse
}

func (p *fakePlugin) PreStartContainer(_ context.Context, in *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.note("prepare", in.DevicesIds)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// node is a Manager that runs.
type node struct {
	t    *testing.T
	dir  string
	m    *Manager
	stop func()
	// changes has an entry for each time that something has changed.
	changes chan struct{}
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.changes = make(chan struct{}, 1000)
	var err error
	n.m, err = New(Config{Dir: filepath.Join(n.dir, "p"), State: filepath.Join(n.dir, "state"), Changed: func() { n.changes <- struct{}{} }})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.m.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	for {
		if _, err := os.Stat(filepath.Join(n.dir, "p", "kubelet.sock")); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (n *node) register(req *pluginapi.RegisterRequest) error {
	n.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.dir, "p", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(n.t.Context(), req, grpc.WaitForReady(true))
	return err
}

// plugin starts a plugin that has devices, and waits until the node knows them.
func (n *node) plugin(endpoint string, p *fakePlugin, ids ...string) *fakePlugin {
	n.t.Helper()
	n.serve(endpoint, p)
	if err := n.register(&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: gpu}); err != nil {
		n.t.Fatal(err)
	}
	p.list <- healthy(ids...)
	<-n.changes
	return p
}

func (n *node) serve(endpoint string, p *fakePlugin) *fakePlugin {
	n.t.Helper()
	p.endpoint, p.list, p.answers = endpoint, make(chan []*pluginapi.Device, 10), 1
	if p.options == nil {
		p.options = &pluginapi.DevicePluginOptions{}
	}
	l, err := new(net.ListenConfig).Listen(n.t.Context(), "unix", filepath.Join(n.dir, "p", endpoint))
	if err != nil {
		n.t.Fatal(err)
	}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(l) }() // it ends with Stop
	n.t.Cleanup(p.server.Stop)
	return p
}

// A plugin whose options cannot be had was told that it had registered.
func TestAPluginThatDoesNotAnswerIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.serve("shy.sock", &fakePlugin{shy: errors.New("not today")})
	err := n.register(&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.endpoint, ResourceName: gpu})
	if err == nil || !strings.Contains(err.Error(), "failed to get device plugin options") || !strings.Contains(err.Error(), "not today") {
		t.Error(err)
	}
	if c, _ := n.m.Resources(); len(c) != 0 {
		t.Errorf("the node offers %v", c)
	}
}

func healthy(ids ...string) []*pluginapi.Device {
	var out []*pluginapi.Device
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}

func (n *node) wantResources(all, healthy int64) {
	n.t.Helper()
	c, a := n.m.Resources()
	if got, may := c[gpu], a[gpu]; got.Value() != all || may.Value() != healthy {
		n.t.Errorf("capacity %v, allocatable %v; want %d and %d", c, a, all, healthy)
	}
}

type asks struct {
	name string
	n    int64
	kind string // "", init or sidecar
}

func podOf(asks ...asks) *v1.Pod {
	p := &v1.Pod{}
	for _, a := range asks {
		c := v1.Container{Name: a.name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{gpu: *resource.NewQuantity(a.n, resource.DecimalSI)}}}
		switch a.kind {
		case "sidecar":
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func said(d podplan.Devices) map[string]string {
	out := map[string]string{}
	for container, grants := range d {
		for _, g := range grants {
			out[container] += strings.Join(g.IDs, " ")
		}
	}
	return out
}

// choose chooses for all of a pod's containers, near no NUMA node.
func choose(m *Manager, pod *v1.Pod, held []podplan.Devices, preferred Preferred) (podplan.Devices, error) {
	c := m.Choose(pod, held, preferred)
	err := (*numa.Manager)(nil).Align(pod, c)
	return c.Chosen(), err
}

func TestPluginComesAndGoes(t *testing.T) {
	n := newNode(t)
	p := n.plugin("one.sock", &fakePlugin{}, "a", "b", "c")
	n.wantResources(3, 3)
	p.list <- append(healthy("a"), &pluginapi.Device{ID: "b", Health: pluginapi.Unhealthy}, &pluginapi.Device{Health: pluginapi.Healthy})
	<-n.changes
	n.wantResources(2, 1)
	p.server.Stop()
	<-n.changes
	n.wantResources(2, 0)
	if _, err := choose(n.m, podOf(asks{name: "c", n: 1}), nil, nil); err == nil || err.Error() != "no healthy devices present; cannot allocate unhealthy devices example.com/gpu" {
		t.Error(err)
	}
	n.plugin("again.sock", &fakePlugin{}, "a", "d")
	n.wantResources(2, 2)
	// A second one takes the place of the first, which is told no longer.
	n.plugin("other.sock", &fakePlugin{}, "x")
	n.wantResources(1, 1)
}

// Such a plugin used to leave no trace on the node; upstream's shows that there is nothing of its resource.
func TestAPluginThatTellsOfNoDevices(t *testing.T) {
	n := newNode(t)
	n.plugin("one.sock", &fakePlugin{mute: errors.New("no devices today")})
	n.wantResources(0, 0)
	if c, _ := n.m.Resources(); len(c) != 1 {
		t.Errorf("the node offers %v", c)
	}
	n.plugin("again.sock", &fakePlugin{}, "a")
	n.wantResources(1, 1)
}

// The last words of a plugin came after the first ones of its successor: both were ended.
func TestLastWordsOfAPredecessorCountForNothing(t *testing.T) {
	m, err := New(Config{State: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]bool{}
	first := &plugin{resource: gpu, number: 1, end: func() { ended["first"] = true }}
	second := &plugin{resource: gpu, number: 2, end: func() { ended["second"] = true }}
	m.take(first, healthy("a"))
	m.take(second, healthy("b", "c"))
	m.take(first, healthy("a"))
	if all := m.Devices()[gpu]; len(all) != 2 || m.pluginOf(gpu) != second || !ended["first"] || ended["second"] {
		t.Errorf("%v, ended: %v", all, ended)
	}
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	n := newNode(t)
	ok := pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "a.sock", ResourceName: gpu}
	for want, change := range map[string]func(*pluginapi.RegisterRequest){
		`requested API version "v1" is not supported by kubelet. Supported version is "v1beta1"`: func(r *pluginapi.RegisterRequest) { r.Version = "v1" },
		`the ResourceName "cpu" is invalid`:                      func(r *pluginapi.RegisterRequest) { r.ResourceName = "cpu" },
		`the ResourceName "kubernetes.io/gpu" is invalid`:        func(r *pluginapi.RegisterRequest) { r.ResourceName = "kubernetes.io/gpu" },
		`endpoint "../x.sock" is not the name of a socket in`:    func(r *pluginapi.RegisterRequest) { r.Endpoint = "../x.sock" },
		`endpoint "/run/x.sock" is not the name of a socket in`:  func(r *pluginapi.RegisterRequest) { r.Endpoint = "/run/x.sock" },
		`endpoint "" is not the name of a socket in`:             func(r *pluginapi.RegisterRequest) { r.Endpoint = "" },
		`endpoint ".." is not the name of a socket in`:           func(r *pluginapi.RegisterRequest) { r.Endpoint = ".." },
		`endpoint "kubelet.sock" is not the name of a socket in`: func(r *pluginapi.RegisterRequest) { r.Endpoint = "kubelet.sock" },
	} {
		r := pluginapi.RegisterRequest{Version: ok.Version, Endpoint: ok.Endpoint, ResourceName: ok.ResourceName}
		change(&r)
		if err := n.register(&r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if c, _ := n.m.Resources(); len(c) > 0 {
		t.Errorf("%v", c)
	}
}

func TestChoice(t *testing.T) {
	n := newNode(t)
	n.plugin("one.sock", &fakePlugin{}, "a", "b", "c", "d")
	held := []podplan.Devices{{"x": {{Resource: gpu, IDs: []string{"b"}}}}}
	for name, c := range map[string]struct {
		pod       *v1.Pod
		preferred Preferred
		want      map[string]string
		err       string
	}{
		"none":                       {pod: podOf(asks{name: "c"}), want: map[string]string{}},
		"others are left alone":      {pod: podOf(asks{name: "c", n: 2}, asks{name: "d", n: 1}), want: map[string]string{"c": "a c", "d": "d"}},
		"more than there are":        {pod: podOf(asks{name: "c", n: 2}, asks{name: "d", n: 2}), err: "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1"},
		"an init container's":        {pod: podOf(asks{"i", 3, "init"}, asks{name: "c", n: 2}, asks{name: "d", n: 1}), want: map[string]string{"i": "a c d", "c": "a c", "d": "d"}},
		"a sidecar keeps its own":    {pod: podOf(asks{"i", 1, "init"}, asks{"s", 2, "sidecar"}, asks{name: "c", n: 1}), want: map[string]string{"i": "a", "s": "a c", "c": "d"}},
		"what the plugin prefers":    {pod: podOf(asks{name: "c", n: 2}), preferred: Preferred{"c": {gpu: {"d", "c"}}}, want: map[string]string{"c": "c d"}},
		"a preference for held ones": {pod: podOf(asks{name: "c", n: 2}), preferred: Preferred{"c": {gpu: {"b", "zz", "d", "d"}}}, want: map[string]string{"c": "a d"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(n.m, c.pod, held, c.preferred)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || fmt.Sprint(said(got)) != fmt.Sprint(c.want) {
				t.Errorf("%v, %v; want %v", said(got), err, c.want)
			}
		})
	}
	if got, err := choose(n.m, &v1.Pod{}, held, nil); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestContainerGetsWhatThePluginSays(t *testing.T) {
	n := newNode(t)
	p := n.plugin("one.sock", &fakePlugin{options: &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, prefer: []string{"b"}}, "a", "b")
	pod := podOf(asks{name: "c", n: 1})
	if !n.m.Prefers(pod) || n.m.Waits(pod) {
		t.Error("it has preferences, and is there")
	}
	would := n.m.Choose(pod, nil, nil)
	if err := (*numa.Manager)(nil).Align(pod, would); err != nil {
		t.Fatal(err)
	}
	chosen, err := choose(n.m, pod, nil, would.Ask(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	given, err := n.m.Allocate(t.Context(), chosen)
	if err != nil || said(given)["c"] != "b" {
		t.Fatalf("%v, %v", said(given), err)
	}
	got, err := n.m.Container(t.Context(), given["c"])
	if err != nil || len(got.Env) != 1 || got.Env[0].Value != "b" || !got.Mounts[0].Readonly || got.Mounts[0].HostPath != "/usr/lib/gpu" ||
		got.Devices[0].Permissions != "rw" || got.Annotations["example.com/gpus"] != "yes" || !slices.Equal(got.CDI, []string{"example.com/gpu=a"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if want := []string{"allocate b", "prepare b"}; !slices.Equal(p.asked, want) {
		t.Errorf("asked %q, want %q", p.asked, want)
	}
	p.answers = 2
	if _, err := n.m.Allocate(t.Context(), chosen); err == nil {
		t.Error("two answers for one container")
	}
	p.answers, p.refuse = 1, errors.New("no")
	if _, err := n.m.Allocate(t.Context(), chosen); err == nil || !strings.Contains(err.Error(), "no") {
		t.Error(err)
	}
	p.server.Stop()
	<-n.changes
	if _, err := n.m.Container(t.Context(), given["c"]); err == nil || !strings.Contains(err.Error(), "has gone") {
		t.Error(err)
	}
	if _, err := n.m.Allocate(t.Context(), chosen); err == nil {
		t.Error("allocated by nobody")
	}
}

// After a restart of the kubelet the plugins have to register again. Upstream refuses pods that are quicker.
func TestPodsWaitForPluginsThatWereThere(t *testing.T) {
	n := newNode(t)
	n.plugin("one.sock", &fakePlugin{}, "a")
	pod := podOf(asks{name: "c", n: 1})
	for {
		if data, err := os.ReadFile(n.m.cfg.State); err == nil && string(data) == `["`+gpu+`"]` {
			break
		}
		time.Sleep(time.Millisecond)
	}
	n.stop()
	n.start()
	if !n.m.Waits(pod) {
		t.Error("it does not wait")
	}
	n.wantResources(0, 0)
	if _, err := n.m.Container(t.Context(), []podplan.Grant{{Resource: gpu}}); err == nil {
		t.Error("whether the plugin wants to prepare the device is not known")
	}
	n.plugin("two.sock", &fakePlugin{}, "a")
	if n.m.Waits(pod) {
		t.Error("it waits although the plugin is back")
	}
}

func TestPluginsThatDoNotComeBackAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(state, []byte(`["`+gpu+`"]`), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{State: state})
		if err != nil {
			t.Fatal(err)
		}
		if left := m.forget(time.Now()); left != Patience {
			t.Errorf("%v", left)
		}
		time.Sleep(Patience - time.Second)
		m.forget(time.Now())
		if !m.Waits(podOf(asks{name: "c", n: 1})) {
			t.Error("forgotten too soon")
		}
		time.Sleep(time.Second)
		m.forget(time.Now())
		if m.Waits(podOf(asks{name: "c", n: 1})) {
			t.Error("not forgotten")
		}
		if c, _ := m.Resources(); len(c) != 1 || c.Name(gpu, resource.DecimalSI).Value() != 0 {
			t.Errorf("%v: the node must say that it has none", c)
		}
		if err := m.save(); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(state); err != nil || string(data) != "null" && string(data) != "[]" {
			t.Errorf("%s, %v", data, err)
		}
	})
}

func TestDamagedState(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{State: state})
	if err != nil {
		t.Fatalf("what can be found out anew keeps the node from starting: %v", err)
	}
	if c, _ := m.Resources(); len(c) > 0 {
		t.Errorf("%v", c)
	}
}

// TestNUMANodesOfDevices are in the hints, and devices come from there, also if the plugin prefers others.
func TestNUMANodesOfDevices(t *testing.T) {
	n := newNode(t)
	p := n.plugin("one.sock", &fakePlugin{options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, prefer: []string{"a"}})
	var all []*pluginapi.Device
	for id, nodes := range map[string][]int64{"a": {0}, "b": {0}, "c": {1}, "d": {1}, "e": {0, 1}, "f": nil} {
		d := &pluginapi.Device{ID: id, Health: pluginapi.Healthy}
		if nodes != nil {
			d.Topology = &pluginapi.TopologyInfo{}
		}
		for _, id := range nodes {
			d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: id})
		}
		all = append(all, d)
	}
	p.list <- all
	<-n.changes
	n.wantResources(6, 6)
	n.m.cfg.Nodes = numa.NodesOf(0, 1)
	for name, tc := range map[string]struct {
		pod       *v1.Pod
		held      string
		preferred []string
		near      numa.Nodes
		hints     string
		want      string
	}{
		"anywhere":                    {pod: podOf(asks{name: "c", n: 1}), hints: "[{0 true} {1 true} {0-1 false}]", want: "a"},
		"near a node":                 {pod: podOf(asks{name: "c", n: 2}), near: numa.NodesOf(1), hints: "[{0 true} {1 true} {0-1 false}]", want: "c d"},
		"some are held":               {pod: podOf(asks{name: "c", n: 3}), held: "d", hints: "[{0 true} {0-1 false}]", want: "a b c"},
		"of both":                     {pod: podOf(asks{name: "c", n: 4}), near: numa.NodesOf(0, 1), hints: "[{0-1 true}]", want: "a b c d"},
		"more than are near":          {pod: podOf(asks{name: "c", n: 4}), near: numa.NodesOf(1), hints: "[{0-1 true}]", want: "a c d e"},
		"one without a place is last": {pod: podOf(asks{name: "c", n: 6}), near: numa.NodesOf(1), hints: "[]", want: "a b c d e f"},
		"the preferred one is far":    {pod: podOf(asks{name: "c", n: 1}), near: numa.NodesOf(1), preferred: []string{"a", "d"}, hints: "[{0 true} {1 true} {0-1 false}]", want: "d"},
	} {
		var held []podplan.Devices
		if tc.held != "" {
			held = []podplan.Devices{{"x": {{Resource: gpu, IDs: []string{tc.held}}}}}
		}
		c := n.m.Choose(tc.pod, held, Preferred{"c": {gpu: tc.preferred}})
		container := &tc.pod.Spec.Containers[0]
		hints := c.Hints(container)[gpu]
		slices.SortFunc(hints, func(a, b numa.Hint) int { return int(a.Nodes) - int(b.Nodes) })
		if err := c.Take(container, numa.Hint{Nodes: tc.near}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := fmt.Sprint(hints); got != tc.hints || said(c.Chosen())["c"] != tc.want {
			t.Errorf("%s: %s, %s; want %s, %s", name, got, said(c.Chosen()), tc.hints, tc.want)
		}
	}
	// An init container's device binds its pod to where it is; the plugin is asked about what is near.
	pod := podOf(asks{"i", 1, "init"}, asks{name: "c", n: 2})
	c := n.m.Choose(pod, nil, nil)
	for _, container := range []*v1.Container{&pod.Spec.InitContainers[0], &pod.Spec.Containers[0]} {
		if err := c.Take(container, numa.Hint{Nodes: numa.NodesOf(1)}); err != nil {
			t.Fatal(err)
		}
	}
	if hints := fmt.Sprint(c.hints(gpu, 1)); said(c.Chosen())["c"] != "c d" || c.wantedByPod()[gpu] != 2 {
		t.Error(said(c.Chosen()), hints, c.wantedByPod())
	}
	if got := c.Ask(t.Context()); !slices.Equal(p.available, []string{"c", "d", "e"}) {
		t.Errorf("the plugin was asked about %q, and said %v", p.available, got)
	}
}

// TestAPluginThatNamesManyNodes, none of which the machine has: looking at all sets of them would never end.
func TestAPluginThatNamesManyNodes(t *testing.T) {
	n := newNode(t)
	n.m.cfg.Nodes = numa.NodesOf(0, 1)
	p := n.plugin("one.sock", &fakePlugin{})
	d := &pluginapi.Device{ID: "a", Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{}}
	for id := int64(-3); id < 70; id++ {
		d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: id})
	}
	p.list <- []*pluginapi.Device{d}
	<-n.changes
	pod := podOf(asks{name: "c", n: 1})
	if hints := n.m.Choose(pod, nil, nil).Hints(&pod.Spec.Containers[0])[gpu]; len(hints) != 3 {
		t.Errorf("%v", hints)
	}
}

func TestManyDevices(t *testing.T) {
	n := newNode(t)
	var ids []string
	for i := range 10000 {
		ids = append(ids, fmt.Sprintf("GPU-%036d", i))
	}
	n.plugin("one.sock", &fakePlugin{}, ids...)
	n.wantResources(10000, 10000)
	got, err := choose(n.m, podOf(asks{name: "c", n: 9999}, asks{name: "d", n: 1}), nil, nil)
	if err != nil || len(got["c"][0].IDs) != 9999 {
		t.Error(err)
	}
}
