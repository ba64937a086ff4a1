package plugins

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/plugins/devices"
)

// knowsDevices is a handle for plugins that only ask for devices.
type knowsDevices struct {
	fwk.Handle
	manager *devices.Manager
}

func (k knowsDevices) KnownDevices() fwk.SharedDRAManager { return k.manager }

// deviceWorld has a class for example.com/gpu and slices with as many devices of it as their names say, and one that is none.
func deviceWorld(t *testing.T) knowsDevices {
	t.Helper()
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	api := f.Resource().V1()
	m, err := devices.NewManager(f)
	if err != nil {
		t.Fatal(err)
	}
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	class.Spec.ExtendedResourceName = new("example.com/gpu")
	class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["d"].kind == "gpu"`}}}
	device := func(i int, kind string) resourcev1.Device {
		return resourcev1.Device{Name: fmt.Sprint(kind, i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"kind": {StringValue: &kind}}}
	}
	slice := func(name string, n int, where func(*resourcev1.ResourceSliceSpec)) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec = resourcev1.ResourceSliceSpec{Driver: "d", Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}}
		for i := range n {
			s.Spec.Devices = append(s.Spec.Devices, device(i, "gpu"))
		}
		s.Spec.Devices = append(s.Spec.Devices, device(0, "nic"))
		where(&s.Spec)
		return s
	}
	zone := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"z"}}},
	}}}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Driver: "d", Pool: "four", Device: "gpu0"}, {Driver: "d", Pool: "four", Device: "nic0"},
	}}}
	slices := api.ResourceSlices().Informer().GetStore()
	if err := errors.Join(
		api.DeviceClasses().Informer().GetStore().Add(class), api.ResourceClaims().Informer().GetStore().Add(claim),
		slices.Add(slice("four", 4, func(s *resourcev1.ResourceSliceSpec) { s.NodeName = new("a") })),
		slices.Add(slice("zone", 4, func(s *resourcev1.ResourceSliceSpec) { s.NodeSelector = zone })),
		slices.Add(slice("each", 2, func(s *resourcev1.ResourceSliceSpec) {
			s.PerDeviceNodeSelection = new(true)
			s.Devices[0].NodeName, s.Devices[1].NodeName, s.Devices[2].AllNodes = new("b"), new("a"), new(true)
		})),
	); err != nil {
		t.Fatal(err)
	}
	return knowsDevices{manager: m}
}

// TestDevicesCountForScores where a strategy names the resource that they stand for (upstream's numbers): all of the class
// that a node has, and those of them that are given away.
func TestDevicesCountForScores(t *testing.T) {
	h := deviceWorld(t)
	strategy := &configv1.ScoringStrategy{Type: configv1.LeastAllocated, Resources: []configv1.ResourceSpec{{Name: "example.com/gpu", Weight: 1}}}
	fit, err := newNodeResourcesFit(t.Context(), &configv1.NodeResourcesFitArgs{ScoringStrategy: strategy}, h)
	if err != nil {
		t.Fatal(err)
	}
	strategy.Type = configv1.MostAllocated
	most, err := newNodeResourcesFit(t.Context(), &configv1.NodeResourcesFitArgs{ScoringStrategy: strategy}, h)
	if err != nil {
		t.Fatal(err)
	}
	balanced, err := newBalancedAllocation(t.Context(), &configv1.NodeResourcesBalancedAllocationArgs{
		Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 1}},
	}, h)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name, zone, has string) fwk.NodeInfo {
		return makeNode(t, func(n *v1.Node) {
			n.Name, n.Labels = name, map[string]string{"zone": zone}
			n.Status.Allocatable = amounts("cpu=4 memory=4Gi pods=10 " + has)
		})
	}
	for _, tc := range []struct {
		node                  fwk.NodeInfo
		asks                  string
		least, most, balanced int64
	}{
		{node("a", "", ""), "example.com/gpu=1", 60, 40, 70},                   // of 4 and 1, one is taken: 2 of 5
		{node("b", "z", ""), "example.com/gpu=2", 60, 40, 65},                  // 4 of the zone and 1 of its own: 2 of 5
		{node("c", "", ""), "example.com/gpu=1", 0, 0, 75},                     // none
		{node("a", "", "example.com/gpu=10"), "example.com/gpu=1", 90, 10, 72}, // what the node offers itself comes first
		{node("a", "", ""), "cpu=1", 0, 0, 75},                                 // it does not matter to the pod
	} {
		pod := makePod(requests(tc.asks))
		for i, want := range []int64{tc.least, tc.most, tc.balanced} {
			pl := []fwk.Plugin{fit, most, balanced}[i].(fwk.ScorePlugin)
			if got := score(t, pl, pod, tc.node); got != want {
				t.Errorf("%s on %s, plugin %d: %d, want %d", tc.asks, tc.node.Node().Name, i, got, want)
			}
		}
	}
}
