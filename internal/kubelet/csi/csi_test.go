package csi

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/internal/kubelet/plugins"
	"wherry.dev/test/fakecsi"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func as(d *fakecsi.Driver, versions ...string) plugins.Plugin {
	return plugins.Plugin{Type: "CSIPlugin", Name: d.Name, Endpoint: d.Socket(), Versions: versions, Socket: d.Socket()}
}

func TestADriverIsCalledUntilItIsGone(t *testing.T) {
	d := fakecsi.New(t, "d.example.com")
	d.Serve(t, "")
	var told []string
	drivers := &Drivers{
		Install: func(_ context.Context, driver string, info *spec.NodeGetInfoResponse) error {
			told = append(told, "+"+driver+" "+info.NodeId)
			return nil
		},
		Uninstall: func(_ context.Context, driver string) error {
			told = append(told, "-"+driver)
			return nil
		},
		Came: func(driver string) { told = append(told, "came "+driver) },
	}
	if err := drivers.Register(t.Context(), as(d, "1.0.0")); err != nil {
		t.Fatal(err)
	}
	err := drivers.Call(t.Context(), d.Name, func(ctx context.Context, c spec.NodeClient) error {
		can, err := Can(ctx, c)
		if !can[spec.NodeServiceCapability_RPC_EXPAND_VOLUME] || can[spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
			t.Errorf("it can do %v", can)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := drivers.Deregister(t.Context(), as(d, "1.0.0")); err != nil {
		t.Fatal(err)
	}
	err = drivers.Call(t.Context(), d.Name, func(context.Context, spec.NodeClient) error { return nil })
	if err == nil || err.Error() != "driver name d.example.com not found in the list of registered CSI drivers" {
		t.Errorf("a driver that is gone: %v", err)
	}
	if want := []string{"+d.example.com id-of-d.example.com", "came d.example.com", "-d.example.com"}; !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
}

func TestDriversThatAreNotTaken(t *testing.T) {
	d := fakecsi.New(t, "d")
	d.Serve(t, "")
	drivers := &Drivers{}
	for want, p := range map[string]plugins.Plugin{
		"empty list for supported versions": as(d),
		"None of the versions specified":    as(d, "2.0", "x", "0.3"),
	} {
		if err := drivers.Register(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", p, err, want)
		}
	}
	if err := drivers.Register(t.Context(), as(d, "1.2.0")); err != nil {
		t.Fatal(err)
	}
	other := fakecsi.New(t, "d")
	other.Serve(t, "")
	if err := drivers.Register(t.Context(), as(other, "1.0.0", "1.2.0")); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Errorf("a second driver of the name: %v", err)
	}
	if err := drivers.Register(t.Context(), as(other, "1.3.0")); err != nil {
		t.Errorf("a newer driver of the name: %v", err)
	}
	if err := drivers.Deregister(t.Context(), as(d, "1.2.0")); err != nil { // the newer one stays
		t.Fatal(err)
	}
	if err := drivers.Call(t.Context(), "d", func(context.Context, spec.NodeClient) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestADriverThatFailsAtFirstIsNotThere(t *testing.T) {
	d := fakecsi.New(t, "d")
	drivers := &Drivers{Install: func(context.Context, string, *spec.NodeGetInfoResponse) error { return errors.New("no such node") }}
	if err := drivers.Register(t.Context(), as(d, "1.0.0")); err == nil {
		t.Error("a driver that does not answer was registered")
	}
	d.Serve(t, "")
	if err := drivers.Register(t.Context(), as(d, "1.0.0")); err == nil || err.Error() != "no such node" {
		t.Errorf("got %v", err)
	}
	drivers.Install = nil
	if err := drivers.Register(t.Context(), as(d, "1.0.0")); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

func TestACallThatHangsCanBeGivenUp(t *testing.T) {
	d := fakecsi.New(t, "d")
	d.Serve(t, "")
	drivers := &Drivers{}
	if err := drivers.Register(t.Context(), as(d, "1.0.0")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.Before("NodeStageVolume", func(ctx context.Context) error {
		cancel()
		return fakecsi.Hang(ctx)
	})
	err := drivers.Call(ctx, "d", func(ctx context.Context, c spec.NodeClient) error {
		_, err := c.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{VolumeId: "v"})
		return err
	})
	if err == nil {
		t.Error("a call that hangs has succeeded")
	}
}

func node() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid"}} }

func info(id string, most int64, zone string) *spec.NodeGetInfoResponse {
	return &spec.NodeGetInfoResponse{
		NodeId: id, MaxVolumesPerNode: most, AccessibleTopology: &spec.Topology{Segments: map[string]string{"zone": zone}},
	}
}

func driversOf(t *testing.T, n *Node) []storagev1.CSINodeDriver {
	t.Helper()
	got, err := n.Client.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := got.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].UID != "uid" {
		t.Errorf("the CSINode belongs to %v", o)
	}
	return got.Spec.Drivers
}

func writes(c *fake.Clientset) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() != "get" {
			n++
		}
	}
	return n
}

func TestTheClusterKnowsTheDriversOfTheNode(t *testing.T) {
	client := fake.NewClientset(node())
	n := &Node{Client: client, Name: "n"}
	for _, name := range []string{"a", "b"} {
		if err := n.Install(t.Context(), name, info("id-"+name, 7, "z")); err != nil {
			t.Fatal(err)
		}
	}
	got := driversOf(t, n)
	if len(got) != 2 || got[0].Name != "a" || got[0].NodeID != "id-a" || *got[0].Allocatable.Count != 7 || !slices.Equal(got[0].TopologyKeys, []string{"zone"}) {
		t.Errorf("the CSINode has %v", got)
	}
	have, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil || have.Labels["zone"] != "z" || have.Annotations[annotationNodeIDs] != `{"a":"id-a","b":"id-b"}` {
		t.Errorf("the node has labels %v and annotations %v, %v", have.Labels, have.Annotations, err)
	}
	before := writes(client)
	if err := n.Install(t.Context(), "a", info("id-a", 7, "z")); err != nil {
		t.Fatal(err)
	}
	if writes(client) != before {
		t.Error("something was written although nothing had changed")
	}
	if err := n.Install(t.Context(), "a", info("other", 3, "z")); err != nil {
		t.Fatal(err)
	}
	if got := driversOf(t, n); len(got) != 2 || got[1].NodeID != "other" || *got[1].Allocatable.Count != 3 {
		t.Errorf("after the driver has changed: %v", got)
	}
	if err := n.Install(t.Context(), "c", info("id", 0, "elsewhere")); err == nil || !strings.Contains(err.Error(),
		`detected topology value collision: driver reported "zone":"elsewhere" but existing label is "zone":"z"`) {
		t.Errorf("two zones: %v", err)
	}
	if err := n.Install(t.Context(), "c", &spec.NodeGetInfoResponse{}); err == nil {
		t.Error("a driver without a node ID was installed")
	}
	for _, name := range []string{"a", "b", "b", "never"} {
		if err := n.Uninstall(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	have, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if got := driversOf(t, n); err != nil || len(got) != 0 || have.Annotations[annotationNodeIDs] != "" {
		t.Errorf("at the end there are %v and %v, %v", got, have.Annotations, err)
	}
}

func TestSomebodyElseWritesTheCSINode(t *testing.T) {
	client := fake.NewClientset(node())
	conflicts := 2
	client.PrependReactor("update", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts--
		return conflicts >= 0, nil, apierrors.NewConflict(schema.GroupResource{Resource: "csinodes"}, "n", errors.New("changed"))
	})
	n := &Node{Client: client, Name: "n"}
	for _, name := range []string{"a", "b"} {
		if err := n.Install(t.Context(), name, info("id", 0, "z")); err != nil {
			t.Fatal(err)
		}
	}
	if got := driversOf(t, n); len(got) != 2 || got[0].Allocatable != nil {
		t.Errorf("the CSINode has %v", got)
	}
}

func TestTheClusterKnowsHowManyVolumesTheNodeCanHave(t *testing.T) {
	client := fake.NewClientset(node())
	n := &Node{Client: client, Name: "n"}
	if err := errors.Join(n.Update(t.Context(), "a", info("id-a", 9, "z")), n.Install(t.Context(), "a", info("id-a", 7, "z"))); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int64{5, 0, math.MaxInt64} {
		if err := n.Update(t.Context(), "a", info("another", most, "elsewhere")); err != nil {
			t.Fatal(err)
		}
		got := driversOf(t, n)
		want := storagev1.CSINodeDriver{Name: "a", NodeID: "id-a", TopologyKeys: []string{"zone"}}
		if most > 0 {
			want.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(most, math.MaxInt32)))}
		}
		if len(got) != 1 || !equality.Semantic.DeepEqual(got[0], want) {
			t.Errorf("of %d volumes: %+v", most, got)
		}
	}
	before := writes(client)
	if err := n.Update(t.Context(), "a", info("id-a", math.MaxInt32, "z")); err != nil || writes(client) != before {
		t.Errorf("written although nothing has changed, %v", err)
	}
	// A driver that has gone does not come back by an answer that was under way.
	if err := errors.Join(n.Uninstall(t.Context(), "a"), n.Update(t.Context(), "a", info("id-a", 3, "z"))); err != nil {
		t.Fatal(err)
	}
	if got := driversOf(t, n); len(got) > 0 {
		t.Errorf("it is back: %v", got)
	}
}

// A driver is asked as often as its object says, as long as both are there.
func TestDriversAreAskedAgainAsTheyWant(t *testing.T) {
	client := fake.NewClientset()
	asked := make(chan string, 100)
	drivers := &Drivers{Update: func(_ context.Context, driver string, _ *spec.NodeGetInfoResponse) error {
		asked <- driver
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- drivers.FollowLimits(ctx, client) }()
	a, b := fakecsi.New(t, "a.example.com"), fakecsi.New(t, "b.example.com")
	for _, d := range []*fakecsi.Driver{a, b} {
		d.Serve(t, "")
		if err := drivers.Register(t.Context(), as(d, "1.0.0")); err != nil {
			t.Fatal(err)
		}
	}
	api := client.StorageV1().CSIDrivers()
	object := func(d *fakecsi.Driver, period *int64) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: d.Name}, Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: period}}
	}
	for d, period := range map[*fakecsi.Driver]*int64{a: new(int64(1)), b: nil} {
		if _, err := api.Create(t.Context(), object(d, period), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-asked; got != a.Name {
		t.Errorf("%s was asked", got)
	}
	a.Before("NodeGetInfo", fakecsi.Refuse(codes.Unavailable, "not now"))
	if _, err := api.Update(t.Context(), object(b, new(int64(1))), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for got := range asked { // one of the first one's answers may still be there
		if got == b.Name {
			break
		}
	}
	if err := drivers.Deregister(t.Context(), as(b, "1.0.0")); err != nil {
		t.Fatal(err)
	}
	a.Before("NodeGetInfo", nil)
	for got := range asked { // answers that were under way when it went
		if got == a.Name {
			break
		}
	}
	if got := <-asked; got != a.Name {
		t.Errorf("%s is asked after it has gone", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A period that is too long for a duration must not become a short one.
func TestALongPeriodStaysLong(t *testing.T) {
	for seconds, want := range map[int64]time.Duration{60: time.Minute, 18446744074: math.MaxInt64 / time.Second * time.Second, math.MaxInt64: math.MaxInt64 / time.Second * time.Second} {
		d := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds}}
		if got := RefreshPeriod(d); got != want {
			t.Errorf("%d seconds are %v, want %v", seconds, got, want)
		}
	}
}
