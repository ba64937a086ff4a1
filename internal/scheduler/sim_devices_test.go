package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
	"wherry.dev/internal/scheduler/plugins/devices"
)

// foreign begins the names of devices of which no slice tells.
const foreign = "z"

// template is the one from which pods of a life have claims made.
const template = "template"

// startDrivers gives some lives devices, and the controller of claims. Writes to claims may fail.
func (l *life) startDrivers(seed uint64) (stop func()) {
	if seed%4 > 1 {
		return func() {}
	}
	l.driven, l.offered = true, map[string]bool{}
	must := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	_, err := l.client.ResourceV1().DeviceClasses().Create(l.t.Context(), standsFor(extendedGPU), metav1.CreateOptions{})
	must(err)
	one := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: template, Namespace: "default"}}
	one.Spec.Spec = deviceClaim("", "gpu", 1).Spec
	_, err = l.client.ResourceV1().ResourceClaimTemplates("default").Create(l.t.Context(), one, metav1.CreateOptions{})
	must(err)
	named(l.client)
	l.mishaps()
	return runClaims(l.t, l.client)
}

// named gives claims that have none a name, and a UID, as the API server does.
func named(client *fake.Clientset) {
	n := 0
	client.PrependReactor("create", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
		c, _ := a.(ktesting.CreateAction)
		if claim, ok := c.GetObject().(*resourcev1.ResourceClaim); ok && claim.GenerateName != "" {
			n++
			claim.Name = fmt.Sprintf("%s%d", claim.GenerateName, n)
			claim.UID = "uid-of-" + types.UID(claim.Name)
		}
		return false, nil, nil
	})
}

// refuses is what the API server says to a write.
func (l *life) refuses(a ktesting.Action) error {
	if (a.GetSubresource() == "" || a.GetResource().Resource == "resourceclaims") && l.fails() {
		return errors.New("the API server is busy")
	}
	return nil
}

// mishaps are what befalls writes of the scheduler's that versioned does not know.
func (l *life) mishaps() {
	busy := errors.New("the API server is busy")
	ours := func(name string) bool { return strings.Contains(name, "-extended-resources-") }
	l.client.PrependReactor("create", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
		c, _ := a.(ktesting.CreateAction)
		claim, ok := c.GetObject().(*resourcev1.ResourceClaim)
		if !ok || !ours(claim.GenerateName) || !l.fails() {
			return false, nil, nil
		}
		if rand.IntN(2) == 0 { //nolint:gosec // any will do; only the answer is lost
			claim = claim.DeepCopy()
			claim.Name = claim.GenerateName + "lost-" + strconv.Itoa(rand.Int()) //nolint:gosec // any will do
			claim.UID = types.UID(claim.Name)
			return true, nil, errors.Join(busy, l.client.Tracker().Create(a.GetResource(), claim, a.GetNamespace()))
		}
		return true, nil, busy
	})
	l.client.PrependReactor("delete", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
		d, ok := a.(ktesting.DeleteAction)
		return ok && ours(d.GetName()) && l.fails(), nil, busy
	})
	l.client.PrependReactor("patch", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		p, ok := a.(ktesting.PatchAction)
		return ok && strings.Contains(string(p.GetPatch()), "extendedResourceClaimStatus") && l.fails(), nil, busy
	})
}

// changeOffer has a device plugin come or go.
func (l *life) changeOffer(n *v1.Node) {
	n.Status.Allocatable = n.Status.Allocatable.DeepCopy()
	switch l.r.IntN(3) {
	case 0:
		delete(n.Status.Allocatable, extendedGPU)
	case 1:
		offers("0")(n)
	case 2:
		offers("2")(n)
		l.offered[n.Name] = true
	}
}

// offer returns how much a node's device plugin offers.
func offer(n *v1.Node) int64 {
	q := n.Status.Allocatable[extendedGPU]
	return q.Value()
}

const impliedGPU v1.ResourceName = "deviceclass.resource.kubernetes.io/gpu"

// extendedOf returns what a pod asks for of a resource that may stand for devices.
func extendedOf(p *v1.Pod) (v1.ResourceName, int64) {
	for _, name := range []v1.ResourceName{extendedGPU, impliedGPU} {
		if q, ok := p.Spec.Containers[0].Resources.Requests[name]; ok {
			return name, q.Value()
		}
	}
	return "", 0
}

// pluginIsBusy reports whether the node's device plugin has given too much away for the pod.
func (w world) pluginIsBusy(p *v1.Pod, n *v1.Node) bool {
	name, sum := extendedOf(p)
	if name != extendedGPU || offer(n) == 0 {
		return false
	}
	for _, o := range w.pods {
		if name, amount := extendedOf(o); o.Spec.NodeName == n.Name && name == extendedGPU && o.Status.ExtendedResourceClaimStatus == nil {
			sum += amount
		}
	}
	return sum > offer(n)
}

// useDevices has a new pod use claims for devices: old ones, new ones, one from the template, or one that comes later.
func (l *life) useDevices(p *v1.Pod) {
	if l.driven && l.r.IntN(3) == 0 {
		asks(pick(l, extendedGPU, extendedGPU, impliedGPU), pick(l, "1", "1", "2"))(p)
	}
	if !l.driven || l.r.IntN(2) == 0 {
		return
	}
	switch k := l.r.IntN(6); {
	case k == 0:
		withTemplate(template)(p)
	case k < 3 && len(l.sharedClaims()) > 0:
		withDevices(pick(l, l.sharedClaims()...).Name)(p)
	default:
		c := deviceClaim(l.name("d"), "gpu", pick(l, int64(1), 1, 2))
		l.note("claim %s: %d devices", c.Name, c.Spec.Devices.Requests[0].Exactly.Count)
		withDevices(c.Name)(p)
		if k == 5 {
			l.note("claim %s comes later", c.Name)
			l.lateDevices = append(l.lateDevices, c)
			return
		}
		l.addDeviceClaim(c)
	}
}

func (l *life) addDeviceClaim(c *resourcev1.ResourceClaim) {
	if _, err := l.client.ResourceV1().ResourceClaims("default").Create(l.t.Context(), c, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// deviceStep makes one thing happen to devices.
func (l *life) deviceStep() {
	if !l.driven {
		return
	}
	fail := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	api, nodes := l.client.ResourceV1(), l.nodes()
	switch k := l.r.IntN(8); {
	case k == 6:
		class, err := api.DeviceClasses().Get(l.t.Context(), "gpu", metav1.GetOptions{})
		fail(err)
		class = class.DeepCopy()
		if class.Spec.ExtendedResourceName = nil; l.r.IntN(3) > 0 {
			class.Spec.ExtendedResourceName = new(extendedGPU)
		}
		l.note("the class stands for %q", resourceOf(class))
		_, err = api.DeviceClasses().Update(l.t.Context(), class, metav1.UpdateOptions{})
		fail(err)
	case k == 7:
		if s, err := api.ResourceSlices().List(l.t.Context(), metav1.ListOptions{}); err == nil && len(s.Items) > 0 {
			one := pick(l, s.Items...)
			l.note("slice %s is withdrawn", one.Name)
			fail(api.ResourceSlices().Delete(l.t.Context(), one.Name, metav1.DeleteOptions{}))
		}
	case k < 3 && len(nodes) > 0:
		n := pick(l, nodes...)
		s, err := api.ResourceSlices().Get(l.t.Context(), "slice-"+n.Name, metav1.GetOptions{})
		if err != nil {
			s = deviceSlice(n.Name, "a")
			l.note("node %s has a device", n.Name)
			_, err = api.ResourceSlices().Create(l.t.Context(), s, metav1.CreateOptions{})
			fail(err)
			return
		}
		if len(s.Spec.Devices) < 3 {
			s.Spec.Devices = deviceSlice("", []string{"a", "b", "c"}[:len(s.Spec.Devices)+1]...).Spec.Devices
			s.Spec.Pool.Generation++
			l.note("node %s has %d devices", n.Name, len(s.Spec.Devices))
			_, err = api.ResourceSlices().Update(l.t.Context(), s, metav1.UpdateOptions{})
			fail(err)
		}
	case k == 3 && len(l.lateDevices) > 0:
		l.note("claim %s is there now", l.lateDevices[0].Name)
		l.addDeviceClaim(l.lateDevices[0])
		l.lateDevices = l.lateDevices[1:]
	case k == 5 && len(nodes) > 0:
		// Somebody else has allocated it, and nobody uses it: whoever does and cannot run there gives it up.
		c := deviceClaim(l.name("d"), "gpu", 1)
		c.Finalizers, c.Status.Allocation = []string{resourcev1.Finalizer}, onNode(pick(l, nodes...).Name, l.name(foreign))
		l.note("claim %s: has %v", c.Name, given(c))
		l.addDeviceClaim(c)
	case k == 4:
		used := map[string]bool{}
		for _, p := range l.pods() {
			for _, c := range devicesOf(p) {
				used[c] = true
			}
		}
		for _, c := range l.deviceClaims() {
			if !used[c.Name] && c.GenerateName == "" {
				l.note("delete claim %s", c.Name)
				fail(api.ResourceClaims("default").Delete(l.t.Context(), c.Name, metav1.DeleteOptions{}))
				return
			}
		}
	}
}

func resourceOf(class *resourcev1.DeviceClass) string {
	if n := class.Spec.ExtendedResourceName; n != nil {
		return *n
	}
	return ""
}

// sharedClaims returns the claims that were not made for one pod.
func (l *life) sharedClaims() []*resourcev1.ResourceClaim {
	return slices.DeleteFunc(l.deviceClaims(), func(c *resourcev1.ResourceClaim) bool { return c.GenerateName != "" })
}

// deviceClaims returns all claims.
func (l *life) deviceClaims() []*resourcev1.ResourceClaim {
	list, err := l.client.ResourceV1().ResourceClaims("default").List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []*resourcev1.ResourceClaim
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// devicesOf returns the names of a pod's claims for devices; "" for one that is not made yet.
func devicesOf(p *v1.Pod) []string {
	var out []string
	for i := range p.Spec.ResourceClaims {
		name := ""
		if n := p.Spec.ResourceClaims[i].ResourceClaimName; n != nil {
			name = *n
		}
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.Name == p.Spec.ResourceClaims[i].Name {
				name = *s.ResourceClaimName
			}
		}
		out = append(out, name)
	}
	return out
}

// addDevices adds claims and devices to the world, and returns what is wrong with them.
func (l *life) addDevices(w *world) string {
	w.devices, w.deviceClaims = map[string]int{}, map[string]*resourcev1.ResourceClaim{}
	if !l.driven {
		return ""
	}
	class, err := l.client.ResourceV1().DeviceClasses().Get(l.t.Context(), "gpu", metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	w.meant = map[v1.ResourceName]bool{impliedGPU: true, v1.ResourceName(resourceOf(class)): true}
	offers, err := l.client.ResourceV1().ResourceSlices().List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range offers.Items {
		w.devices[*offers.Items[i].Spec.NodeName] = len(offers.Items[i].Spec.Devices)
	}
	pods := map[types.UID]bool{}
	for _, p := range l.pods() {
		pods[p.UID] = true
	}
	if why := l.left(); why != "" {
		return why
	}
	owner := map[string]string{}
	for _, c := range l.deviceClaims() {
		w.deviceClaims[c.Name] = c
		for _, r := range c.Status.ReservedFor {
			if !pods[r.UID] && !slices.ContainsFunc(l.squads, func(s *squad) bool { return s.shares && r.UID == "group-"+types.UID(s.name) }) {
				return fmt.Sprintf("claim %s is reserved for pod %s, which is over", c.Name, r.Name)
			}
		}
		for _, d := range given(c) {
			if other, ok := owner[d]; ok {
				return fmt.Sprintf("device %s was given to claims %s and %s", d, other, c.Name)
			}
			owner[d] = c.Name
		}
	}
	if why := w.withoutDevices(); why != "" {
		return why
	}
	return l.withoutExtended(*w)
}

// left returns which claim the scheduler has made for nothing: there is one for each pod that has one, and none for a
// pod that waits. If its pod is gone, the garbage collector deletes it, which does not run here.
func (l *life) left() string {
	pods, has := map[types.UID]*v1.Pod{}, map[types.UID]string{}
	for _, p := range l.pods() {
		pods[p.UID] = p
	}
	for _, c := range l.deviceClaims() {
		owner := metav1.GetControllerOf(c)
		if c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil {
			continue
		}
		p := pods[owner.UID]
		switch {
		case p == nil && len(given(c)) == 0:
			continue
		case p == nil:
			return fmt.Sprintf("claim %s has devices, and its pod is over", c.Name)
		case p.Spec.NodeName == "":
			return fmt.Sprintf("claim %s is left of pod %s, which waits: %q", c.Name, p.Name, told(p))
		case has[p.UID] != "":
			return fmt.Sprintf("claims %s and %s are both pod %s's", has[p.UID], c.Name, p.Name)
		case p.Status.ExtendedResourceClaimStatus == nil || p.Status.ExtendedResourceClaimStatus.ResourceClaimName != c.Name:
			return fmt.Sprintf("pod %s does not know of claim %s", p.Name, c.Name)
		}
		has[p.UID] = c.Name
	}
	return ""
}

// withoutExtended returns which pod was bound without the devices that its extended resource stands for.
func (l *life) withoutExtended(w world) string {
	for _, p := range w.pods {
		name, amount := extendedOf(p)
		status := p.Status.ExtendedResourceClaimStatus
		if status == nil {
			if amount > 0 && (name != extendedGPU || !l.offered[p.Spec.NodeName]) {
				return fmt.Sprintf("pod %s was bound to node %s without %s", p.Name, p.Spec.NodeName, name)
			}
			continue
		}
		c := w.deviceClaims[status.ResourceClaimName]
		if c == nil || int64(len(given(c))) != amount || len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != p.UID {
			return fmt.Sprintf("pod %s, which asks for %d of %s, has claim %s: %+v", p.Name, amount, name, status.ResourceClaimName, c)
		}
		for _, d := range given(c) {
			if !strings.HasPrefix(d, p.Spec.NodeName+"/") {
				return fmt.Sprintf("pod %s is on node %s and has device %s", p.Name, p.Spec.NodeName, d)
			}
		}
	}
	for _, n := range w.nodes {
		var sum int64
		for _, o := range w.pods {
			if name, amount := extendedOf(o); o.Spec.NodeName == n.Name && name == extendedGPU && o.Status.ExtendedResourceClaimStatus == nil {
				sum += amount
			}
		}
		if sum > 2 {
			return fmt.Sprintf("%d of %s on node %s, which never had more than 2", sum, extendedGPU, n.Name)
		}
	}
	return ""
}

// given returns the devices of a claim as NODE/DEVICE.
func given(c *resourcev1.ResourceClaim) []string {
	var out []string
	if a := c.Status.Allocation; a != nil {
		for _, r := range a.Devices.Results {
			out = append(out, r.Pool+"/"+r.Device)
		}
	}
	return out
}

// withoutDevices returns which pod was bound without its devices, or apart from them.
func (w world) withoutDevices() string {
	for _, p := range w.pods {
		for _, name := range devicesOf(p) {
			c := w.deviceClaims[name]
			if c == nil || len(given(c)) != int(c.Spec.Devices.Requests[0].Exactly.Count) {
				return fmt.Sprintf("pod %s was bound, and its claim %q has no devices", p.Name, name)
			}
			if !slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
				return r.UID == p.UID || r.UID == "group-"+types.UID(squadOf(p))
			}) {
				return fmt.Sprintf("claim %s is not reserved for pod %s", name, p.Name)
			}
			for _, d := range given(c) {
				if !strings.HasPrefix(d, p.Spec.NodeName+"/") {
					return fmt.Sprintf("pod %s is on node %s and has device %s", p.Name, p.Spec.NodeName, d)
				}
			}
		}
	}
	return ""
}

// noDevices returns why the pod's claims cannot be used, or get no devices, on the node. What a claim has elsewhere is
// given up if nobody else uses it.
func (w world) noDevices(p *v1.Pod, n *v1.Node) string {
	free := w.devices[n.Name]
	for _, c := range w.deviceClaims {
		for _, d := range given(c) {
			if strings.HasPrefix(d, n.Name+"/") && !strings.HasPrefix(d, n.Name+"/"+foreign) {
				free--
			}
		}
	}
	for _, name := range devicesOf(p) {
		c := w.deviceClaims[name]
		switch {
		case c == nil:
			return "no claim"
		case len(given(c)) == 0:
			free -= int(c.Spec.Devices.Requests[0].Exactly.Count)
		case strings.HasPrefix(given(c)[0], n.Name+"/"):
		case slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != p.UID }):
			return "devices of another node"
		default:
			free -= int(c.Spec.Devices.Requests[0].Exactly.Count)
		}
	}
	switch name, amount := extendedOf(p); {
	case amount == 0:
	case name == extendedGPU && offer(n) > 0:
		if amount > offer(n) {
			return "size"
		}
	case !w.meant[name]:
		return "no class"
	default:
		free -= int(amount)
	}
	if free < 0 {
		return "no devices"
	}
	return ""
}

// deafDevices hears of no event.
type deafDevices struct{ *devices.Devices }

func (deafDevices) Name() string { return "Mutant" }
func (deafDevices) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

// graspingDevices keeps what was promised to a pod that is not bound.
type graspingDevices struct{ *devices.Devices }

func (graspingDevices) Name() string                                               { return "Mutant" }
func (graspingDevices) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string) {}

// stubbornDevices gives up no claim.
type stubbornDevices struct{ *devices.Devices }

func (stubbornDevices) Name() string { return "Mutant" }
func (stubbornDevices) PostFilter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// carelessDevices does not write what it has promised.
type carelessDevices struct{ *devices.Devices }

func (carelessDevices) Name() string { return "Mutant" }
func (carelessDevices) PreBind(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status {
	return nil
}

// TestFaultsOfDynamicResourcesAreCaught is TestFaultsOfPluginsAreCaught for what a mutant of a filter alone cannot do
// wrong.
func TestFaultsOfDynamicResourcesAreCaught(t *testing.T) {
	for name, mutate := range map[string]func(*devices.Devices) fwk.Plugin{
		"deaf":     func(d *devices.Devices) fwk.Plugin { return deafDevices{d} },
		"grasping": func(d *devices.Devices) fwk.Plugin { return graspingDevices{d} },
		"stubborn": func(d *devices.Devices) fwk.Plugin { return stubbornDevices{d} },
		"careless": func(d *devices.Devices) fwk.Plugin { return carelessDevices{d} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scheduler.DefaultConfig()
			cfg.Registry = framework.Registry{"Mutant": func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
				pl, err := plugins.Registry()["DynamicResources"](ctx, args, h)
				if err != nil {
					return nil, err
				}
				d, ok := pl.(*devices.Devices)
				if !ok {
					return nil, fmt.Errorf("got a %T", pl)
				}
				return mutate(d), nil
			}}
			cfg.Profiles[0].Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{
				Disabled: []configv1.Plugin{{Name: "DynamicResources"}}, Enabled: []configv1.Plugin{{Name: "Mutant"}},
			}}
			for seed := uint64(1); seed < 400; seed++ {
				if seed%4 > 1 {
					continue
				}
				if wrong, log := live(t, seed, cfg); wrong != "" {
					t.Logf("life %d, noticed: %s\n%s", seed, wrong, strings.Join(log[max(0, len(log)-3):], "\n"))
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}
