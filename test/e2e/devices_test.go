package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"wherry.dev/test/images"
)

// deviceDriver is a DRA driver as drivers are written, with the library that they use. Its devices are a variable in the
// container, by CDI.
type deviceDriver struct {
	c    *cluster
	name string
	cdi  string // the file with its devices for the runtime

	mu       sync.Mutex
	prepared map[types.UID]string
	refuse   error       // to take a claim back
	broken   chan string // devices that are told to be unhealthy
	helper   *kubeletplugin.Helper
	leave    context.CancelFunc
}

func newDeviceDriver(c *cluster) *deviceDriver {
	c.t.Helper()
	name := fmt.Sprintf("gpu-%s-%d.example.com", c.nodeNumber(), os.Getpid()) // the runtime's folder is the machine's
	d := &deviceDriver{c: c, name: name, cdi: filepath.Join("/var/run/cdi", name+".json"), prepared: map[types.UID]string{}, broken: make(chan string, 1)}
	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	doc, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": name + "/gpu", "devices": []device{
		{"one", edits{[]string{"GPU_one=yes"}}}, {"two", edits{[]string{"GPU_two=yes"}}},
	}})
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(d.cdi), 0o755), os.WriteFile(d.cdi, doc, 0o600)); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		d.stop()
		if err := os.Remove(d.cdi); err != nil {
			c.t.Error(err)
		}
	})
	return d
}

func (d *deviceDriver) start() {
	d.c.t.Helper()
	var ctx context.Context
	ctx, d.leave = context.WithCancel(context.WithoutCancel(d.c.t.Context()))
	dir := filepath.Join(d.c.data, "kubelet", "plugins", "gpu")
	node := "n" + d.c.nodeNumber()
	var err error
	if err = os.MkdirAll(dir, 0o755); err == nil {
		d.helper, err = kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.name), kubeletplugin.KubeClient(d.c.client), kubeletplugin.NodeName(node),
			kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.c.data, "kubelet", "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(dir),
			kubeletplugin.RegistrarSocketFilename("gpu.sock"))
	}
	if err == nil {
		err = d.helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			node: {Slices: []resourceslice.Slice{{Devices: []resourcev1.Device{{Name: "one"}, {Name: "two"}}}}},
		}})
	}
	if err != nil {
		d.c.t.Fatal(err)
	}
}

// offer makes the class of the driver's devices, and the template of a claim for one of them.
func (d *deviceDriver) offer() {
	d.c.t.Helper()
	api, ctx := d.c.client.ResourceV1(), d.c.t.Context()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", d.name)}}}
	class.Spec.ExtendedResourceName = new("example.com/gpu")
	if _, err := api.DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		d.c.t.Fatal(err)
	}
	one := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	one.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}
	if _, err := api.ResourceClaimTemplates("default").Create(ctx, one, metav1.CreateOptions{}); err != nil {
		d.c.t.Fatal(err)
	}
}

// gpus returns the devices that a pod's container sees.
func (c *cluster) gpus(pod string) string {
	c.t.Helper()
	var out []string
	for line := range strings.Lines(c.exec(pod, "env")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "GPU_"); ok {
			out = append(out, strings.TrimSuffix(name, "=yes"))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (d *deviceDriver) stop() {
	if d.helper != nil {
		d.helper.Stop()
		d.leave()
		d.helper = nil
	}
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var r kubeletplugin.PrepareResult
		for _, a := range c.Status.Allocation.Devices.Results {
			r.Devices = append(r.Devices, kubeletplugin.Device{
				Requests: []string{a.Request}, PoolName: a.Pool, DeviceName: a.Device, CDIDeviceIDs: []string{d.name + "/gpu=" + a.Device},
			})
		}
		d.prepared[c.UID] = c.Name
		out[c.UID] = r
	}
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	for _, c := range claims {
		if out[c.UID] = d.refuse; d.refuse == nil {
			delete(d.prepared, c.UID)
		}
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin. Errors of the library's own requests are retried by it.
func (d *deviceDriver) HandleError(_ context.Context, err error, msg string) {
	d.c.t.Logf("driver: %s: %v", msg, err)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case name := <-d.broken:
			reports <- kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{{
				PoolName: "n" + d.c.nodeNumber(), DeviceName: name, Health: kubeletplugin.HealthStatusUnhealthy, LastUpdated: time.Now(),
			}}}
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *deviceDriver) setRefuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// holds waits until the driver has so many claims prepared.
func (d *deviceDriver) holds(n int) {
	d.c.t.Helper()
	var has int
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		d.mu.Lock()
		has = len(d.prepared)
		d.mu.Unlock()
		if has == n {
			return
		}
	}
	d.c.t.Errorf("%d claims are prepared, want %d", has, n)
}

// withDevice has the pod use a claim for a device, from the template one.
func withDevice(p *v1.Pod) {
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}}
	p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
}

// TestDevicesOfADriver get into containers, outlive a kill of the node's process, and are given back before anybody
// hears of the pod's end. A CPU of its own does not get in their way.
func TestDevicesOfADriver(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	alone := func(*v1.Pod) {}
	if runtime.NumCPU() > 1 && c.other == nil {
		c.flags = append(c.flags, "--kubelet-arg=cpu-manager-policy=static", "--kubelet-arg=kube-reserved=cpu=500m")
		alone = func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("32Mi")}
		}
	}
	c.up()
	d := newDeviceDriver(c)
	d.offer()
	d.start()
	c.create(busybox("stays", withDevice, alone))
	before := c.await("stays", "ready", ready)
	c.create(busybox("extended", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	}))
	c.await("extended", "ready", ready)
	a, b := c.gpus("stays"), c.gpus("extended")
	if a+b != "onetwo" && a+b != "twoone" {
		t.Errorf("the pods have %q and %q", a, b)
	}
	cpu := func() string {
		t.Helper()
		_, list, _ := strings.Cut(c.exec("stays", "cat", "/proc/1/status"), "Cpus_allowed_list:")
		list, _, _ = strings.Cut(list, "\n")
		return strings.TrimSpace(list)
	}
	mine := cpu()
	d.holds(2)
	d.broken <- a
	c.await("stays", "told of its device", func(p *v1.Pod) bool {
		st := p.Status.ContainerStatuses[0].AllocatedResourcesStatus
		return len(st) == 1 && st[0].Name == "claim:gpu" && len(st[0].Resources) == 1 &&
			st[0].Resources[0] == v1.ResourceHealth{ResourceID: v1.ResourceID(d.name + "/gpu=" + a), Health: v1.ResourceHealthStatusUnhealthy}
	})

	// The node's process is killed; what runs goes on, and a container that is started again has its device again.
	if err := syscall.Kill(c.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.stop()
	c.up()
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "extended", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitEvent("extended", "FailedUnprepareDynamicResources") // the driver is not back
	if out := c.must("explain", "pod/extended"); !strings.Contains(out, "giving the pod's devices back to their drivers") || !strings.Contains(out, "DRA driver "+d.name+" is not registered") {
		t.Errorf("explain says:\n%s", out)
	}
	d.start()
	d.holds(1)
	c.await("extended", "gone", func(p *v1.Pod) bool { return p == nil })
	if _, err := c.try("kubectl", "exec", "stays", "--", "kill", "1"); err != nil {
		t.Log(err) // the shell may end before it has answered
	}
	c.await("stays", "started again", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == before.Status.ContainerStatuses[0].RestartCount+1
	})
	if again := c.gpus("stays"); again != a {
		t.Errorf("the container had %q, and has %q", a, again)
	}
	if again := cpu(); again != mine {
		t.Errorf("the container was on the CPUs %s, and is on %s", mine, again)
	}

	// The end is told when the device is given back.
	d.setRefuse(errors.New("it is busy"))
	c.create(busybox("ends", withDevice, policy(v1.RestartPolicyNever), script("true")))
	c.awaitEvent("ends", "FailedUnprepareDynamicResources")
	if p := c.get("ends"); p.Status.Phase != v1.PodRunning && p.Status.Phase != v1.PodPending {
		t.Errorf("its phase is %s", p.Status.Phase)
	}
	d.setRefuse(nil)
	c.await("ends", "succeeded", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded })
	d.holds(1)
	c.delete("stays")
	c.await("stays", "gone", func(p *v1.Pod) bool { return p == nil })
	d.holds(0)
}
