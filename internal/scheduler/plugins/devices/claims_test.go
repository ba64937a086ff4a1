package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/scheduler/framework"
)

// claim returns one of a version, with devices.
func claim(name, version string, devices ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version}}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}
	if len(devices) > 0 {
		c.Status.Allocation = &resourcev1.AllocationResult{}
	}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "d", Pool: "p", Device: d})
	}
	return c
}

// takenOf returns the devices that are taken, in order.
func takenOf(c *claims) string {
	var out []string
	for id := range c.taken().AllocatedDevices {
		out = append(out, id.Device.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestADeviceIsTakenFromPromiseToTheEndOfItsClaim(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	c := newClaims(store)
	informer := func(obj *resourcev1.ResourceClaim) func() {
		return func() {
			if err := store.Update(obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone := func(obj *resourcev1.ResourceClaim) func() {
		return func() {
			if err := store.Delete(obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	promise := func(pod types.UID, cycle *framework.GroupCycle) func() {
		return func() { c.promise(claim("c", "1", "x"), pod, cycle) }
	}
	cycle := framework.NewGroupCycle()
	for i, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"the claim appears", informer(claim("c", "1")), ""},
		{"promised", promise("p", nil), "x"},
		{"another claim comes", informer(claim("d", "2", "y")), "x y"},
		{"the finalizer is written, and seen: nothing of the allocation is", informer(claim("c", "3")), "x y"},
		{"the allocation is written", func() { c.note(claim("c", "5", "x"), "c") }, "x y"},
		{"an old version comes late", informer(claim("c", "4")), "x y"},
		{"the informer has it", informer(claim("c", "5", "x")), "x y"},
		{"deallocated by somebody", informer(claim("c", "6")), "y"},
		{"promised once more, for a group", promise("p", cycle), "x y"},
		{"to another one of the group", promise("q", cycle), "x y"},
		{"one of them gives up", func() { c.withdraw("c", "p") }, "x y"},
		{"it gives up twice", func() { c.withdraw("c", "p") }, "x y"},
		{"the other one, too", func() { c.withdraw("c", "q") }, "y"},
		{"deallocated by the scheduler", func() { c.note(claim("d", "7"), "d") }, ""},
		{"allocated anew by somebody", informer(claim("d", "8", "z")), "z"},
		{"gone", gone(claim("d", "8")), ""},
		{"written, and gone before the informer saw it", func() { c.note(claim("c", "9", "x"), "c"); gone(claim("c", "6"))() }, ""},
	} {
		step.do()
		if got := takenOf(c); got != step.want {
			t.Fatalf("%d, %s: %q is taken, want %q", i, step.what, got, step.want)
		}
	}
	c.promise(claim("e", "1", "x"), "p", nil)
	if len(c.written) != 0 {
		t.Errorf("it still remembers %v", c.written)
	}
}

// TestAClaimThatTheSchedulerMakes: its device is taken although the informer does not know it yet, and not longer than
// there is something to hear of.
func TestAClaimThatTheSchedulerMakes(t *testing.T) {
	type world struct {
		*claims
		store cache.Store
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	promise := func(w world) { w.promise(claim("temporary", "", "x"), "p", nil) }
	made := func(w world) { w.note(claim("c", "5"), "temporary") }
	written := func(w world) { w.note(claim("c", "7", "x"), "temporary") }
	shown := func(version string, devices ...string) func(world) {
		return func(w world) { must(w.store.Update(claim("c", version, devices...))); w.seen(claim("c", version)) }
	}
	another := func(w world) { must(w.store.Update(claim("other", "9"))) }
	lost := func(w world) { must(w.store.Delete(claim("c", "7", "x"))) }
	for name, tc := range map[string]struct {
		steps []func(world)
		want  string // taken
		found bool   // by its name
	}{
		"promised":                   {[]func(world){promise}, "x", false},
		"made":                       {[]func(world){promise, made}, "x", true},
		"written":                    {[]func(world){promise, made, written}, "x", true},
		"the informer has the first": {[]func(world){promise, made, written, shown("5")}, "x", true},
		"the informer has it all":    {[]func(world){promise, made, written, shown("7", "x")}, "x", true},
		"gone, and it was told":      {[]func(world){promise, made, written, shown("7", "x"), lost}, "", false},
		"gone before it was told":    {[]func(world){promise, made, written, another}, "", false},
		"gone after the first":       {[]func(world){promise, made, written, shown("5"), lost}, "", false},
		"taken back":                 {[]func(world){promise, func(w world) { w.withdraw("temporary", "p") }}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			w := world{newClaims(store), store}
			must(store.Add(claim("older", "2")))
			for _, step := range tc.steps {
				step(w)
			}
			if got := takenOf(w.claims); got != tc.want {
				t.Errorf("%q is taken, want %q", got, tc.want)
			}
			if _, err := w.get("ns", "c"); (err == nil) != tc.found {
				t.Errorf("looking for it: %v", err)
			}
		})
	}
}

func TestWhatIsTakenOfADevice(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for i, r := range []resourcev1.DeviceRequestAllocationResult{
		{Device: "admin", AdminAccess: new(true)},
		{Device: "whole", AdminAccess: new(false)},
		{Device: "part", ShareID: new(types.UID("1")), ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}},
		{Device: "part", ShareID: new(types.UID("2")), ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("2Gi")}},
	} {
		c := claim(fmt.Sprint(i), "1", "x")
		r.Driver, r.Pool = "d", "p"
		c.Status.Allocation.Devices.Results[0] = r
		if err := store.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	c := newClaims(store)
	if got := takenOf(c); got != "whole" {
		t.Errorf("%q is taken", got)
	}
	taken := c.taken()
	if taken.AllocatedSharedDeviceIDs.Len() != 2 || len(taken.AggregatedCapacity) != 1 {
		t.Errorf("shares: %+v", taken)
	}
	for _, used := range taken.AggregatedCapacity {
		if q := used["memory"]; q.Cmp(resource.MustParse("3Gi")) != 0 {
			t.Errorf("%v is used", q)
		}
	}
}

// BenchmarkTaken is what each attempt to schedule a pod with an open claim costs, by how many claims there are.
func BenchmarkTaken(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			for i := range n {
				if err := store.Add(claim(fmt.Sprintf("c%d", i), "1", fmt.Sprintf("d%d", i))); err != nil {
					b.Fatal(err)
				}
			}
			c := newClaims(store)
			for b.Loop() {
				c.taken()
			}
		})
	}
}
