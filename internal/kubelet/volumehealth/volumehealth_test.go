package volumehealth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/plugins"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/test/fakecsi"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	metrics.Register()
	os.Exit(leaks.Watch(m).Run())
}

const driverName = "csi.example.com"

// node is a manager with one driver that has registered.
type node struct {
	*Manager
	t      *testing.T
	client *fake.Clientset

	mu      sync.Mutex
	all     []volume.Attempted
	changed []types.UID
}

func newNode(t *testing.T, drivers ...*fakecsi.Driver) *node {
	n := &node{t: t, client: fake.NewClientset()}
	object := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	known := &csi.Drivers{}
	for _, d := range drivers {
		if err := known.Register(t.Context(), as(d)); err != nil {
			t.Fatal(err)
		}
		object.Spec.Drivers = append(object.Spec.Drivers, storagev1.CSINodeDriver{Name: d.Name, NodeID: "x"})
	}
	if _, err := n.client.StorageV1().CSINodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Manager = &Manager{
		Drivers: known, Client: n.client, NodeName: "n",
		Volumes: func() ([]volume.Attempted, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Clone(n.all), nil
		},
		Changed: func(uid types.UID) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changed = append(n.changed, uid)
		},
	}
	return n
}

func as(d *fakecsi.Driver) plugins.Plugin {
	return plugins.Plugin{Name: d.Name, Endpoint: d.Socket(), Versions: []string{"1.0.0"}}
}

func newDriver(t *testing.T, name string) *fakecsi.Driver {
	d := fakecsi.New(t, name)
	d.Serve(t, "")
	return d
}

// asked lets all drivers be asked once, and returns the pods that have changed.
func (n *node) asked() string {
	n.round(n.t.Context())
	n.Manager.asked.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.changed = nil }()
	slices.Sort(n.changed)
	return fmt.Sprint(n.changed)
}

func (n *node) has(volumes ...volume.Attempted) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = volumes
}

func of(pod types.UID, driver, handle string) volume.Attempted {
	return volume.Attempted{Pod: pod, Name: "v", Driver: driver, Handle: handle, Staging: "/staging/" + handle, Published: "/published/" + handle}
}

func podWith(uid types.UID, volumes ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	for _, name := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name})
	}
	return p
}

func entry(status csipb.VolumeHealthErrorType, reason, message string) *csipb.VolumeHealth_VolumeHealthEntry {
	return &csipb.VolumeHealth_VolumeHealthEntry{Status: status, Reason: reason, Message: message}
}

// text is what a status says.
func text(all []v1.PodVolumeHealth) string {
	var out []string
	for _, h := range all {
		for _, c := range h.HealthConditions {
			out = append(out, fmt.Sprintf("%s %s/%s: %s", h.Name, c.Status, c.Reason, c.Message))
		}
	}
	return strings.Join(out, ", ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestAPodIsToldWhatIsWrongWithItsVolumes(t *testing.T) {
	d := newDriver(t, driverName)
	n := newNode(t, d)
	p := podWith("p", "v", "w")
	n.has(of("p", driverName, "h"), of("q", driverName, "other"))
	want(t, "first answers", n.asked(), "[p q]")
	want(t, "healthy", text(n.Of(p, nil)), "")
	want(t, "no news", n.asked(), "[]")
	r := fakecsi.Last[*csipb.NodeGetVolumeHealthRequest](d)
	want(t, "request", r.VolumeId+" "+r.StagingTargetPath+" "+r.VolumePublishPath, "other /staging/other /published/other")

	d.Ails("h", entry(csipb.VolumeHealthErrorType_DEGRADED, "PathLost", "one of two"), entry(csipb.VolumeHealthErrorType_DATA_LOSS, "BadBlocks", ""))
	want(t, "it ails", n.asked(), "[p]")
	first := n.Of(p, nil)
	want(t, "it ails", text(first), "v DataLoss/BadBlocks: , v Degraded/PathLost: one of two")
	if first[0].LastTransitionTime.IsZero() {
		t.Error("no time")
	}

	long := metav1.NewTime(first[0].LastTransitionTime.Add(-1e12))
	first[0].LastTransitionTime = long
	d.Ails("h", entry(csipb.VolumeHealthErrorType_DATA_LOSS, "BadBlocks", "many"), entry(csipb.VolumeHealthErrorType_DEGRADED, "PathLost", "one of two"))
	want(t, "another message", n.asked(), "[p]")
	second := n.Of(p, first)
	want(t, "another message", text(second), "v DataLoss/BadBlocks: many, v Degraded/PathLost: one of two")
	if !second[0].LastTransitionTime.Equal(&long) {
		t.Errorf("the time of the same conditions: %v", second[0].LastTransitionTime)
	}

	d.Ails("h", entry(csipb.VolumeHealthErrorType_DATA_LOSS, "BadBlocks", "many"))
	want(t, "one less", n.asked(), "[p]")
	if third := n.Of(p, second); third[0].LastTransitionTime.Equal(&long) {
		t.Error("other conditions have the old time")
	}
	d.Ails("h")
	want(t, "well again", n.asked(), "[p]")
	want(t, "well again", text(n.Of(p, second)), "")
}

func TestADriverThatDoesNotAnswerHasNotSaidThatAllIsWell(t *testing.T) {
	for name, f := range map[string]func(d *fakecsi.Driver){
		"an error":                func(d *fakecsi.Driver) { d.Before("NodeGetVolumeHealth", fakecsi.Refuse(codes.Internal, "no")) },
		"about another volume":    func(d *fakecsi.Driver) { d.Answers("another") },
		"it no longer has health": func(d *fakecsi.Driver) { d.Can = nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, driverName)
			n := newNode(t, d)
			p := podWith("p", "v")
			n.has(of("p", driverName, "h"))
			d.Ails("h", entry(csipb.VolumeHealthErrorType_INACCESSIBLE, "Gone", ""))
			n.asked()
			d.Ails("h")
			f(d)
			want(t, "changed", n.asked(), "[]")
			want(t, "status", text(n.Of(p, nil)), "v Inaccessible/Gone: ")
		})
	}
}

func TestAfterARestartWhatWasReportedStaysUntilTheDriverAnswers(t *testing.T) {
	d := newDriver(t, driverName)
	n := newNode(t, d)
	p := podWith("p", "v")
	was := []v1.PodVolumeHealth{
		{Name: "v", HealthConditions: []v1.VolumeHealthCondition{{Status: v1.VolumeHealthDegraded, Reason: "R"}}},
		{Name: "not there any more"},
	}
	got := n.Of(p, was)
	want(t, "before", text(got), "v Degraded/R: ")
	if len(got) != 1 {
		t.Errorf("got %v", got)
	}
	n.has(of("p", driverName, "h"))
	want(t, "answer", n.asked(), "[p]")
	want(t, "after", text(n.Of(p, was)), "")
	n.has()
	n.asked()
	if len(n.volumes) > 0 {
		t.Errorf("left: %v", n.volumes)
	}
}

// What a driver says never makes a status that the API server refuses: the pod's whole status would stay behind.
func TestADriverThatLies(t *testing.T) {
	d := newDriver(t, driverName)
	n := newNode(t, d)
	n.has(of("p", driverName, "h"))
	long := strings.Repeat("ä", 1000)
	ails := []*csipb.VolumeHealth_VolumeHealthEntry{
		entry(csipb.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, "No", ""), entry(77, "FromTheFuture", ""),
		entry(csipb.VolumeHealthErrorType_DEGRADED, "", "without a reason"), entry(csipb.VolumeHealthErrorType_DEGRADED, long, long),
		entry(csipb.VolumeHealthErrorType_DEGRADED, "Twice", "a"), entry(csipb.VolumeHealthErrorType_DEGRADED, "Twice", "b"), nil,
	}
	d.Ails("h", ails...)
	n.asked()
	got := n.Of(podWith("p", "v"), nil)
	if len(got) != 1 || len(got[0].HealthConditions) != 3 {
		t.Fatalf("got %v", got)
	}
	for _, c := range got[0].HealthConditions {
		if c.Reason == "" || len(c.Reason) > pods.MaxHealthReason || len(c.Message) > pods.MaxHealthMessage || strings.ToValidUTF8(c.Reason+c.Message, "") != c.Reason+c.Message {
			t.Errorf("got %d bytes of reason, %d of message", len(c.Reason), len(c.Message))
		}
	}
	want(t, "without a reason", text(got[:1])[:len("v Degraded/Twice: a, v Degraded/Unknown: without a reason")],
		"v Degraded/Twice: a, v Degraded/Unknown: without a reason")
	for i := range 100 {
		ails = append(ails, entry(csipb.VolumeHealthErrorType_DEGRADED, fmt.Sprint("R", i), ""))
	}
	d.Ails("h", ails...)
	n.asked()
	if got := n.Of(podWith("p", "v"), nil); len(got[0].HealthConditions) != pods.MaxHealthConditions {
		t.Errorf("%d conditions", len(got[0].HealthConditions))
	}
}

func TestADriverThatHangsDelaysNoOther(t *testing.T) {
	slow, fast := newDriver(t, "slow.example.com"), newDriver(t, "fast.example.com")
	n := newNode(t, slow, fast)
	hangs, goOn := make(chan struct{}, 1), make(chan struct{})
	slow.Before("NodeGetVolumeHealth", func(ctx context.Context) error {
		hangs <- struct{}{}
		<-goOn
		return errors.New("late")
	})
	n.has(of("p", slow.Name, "h"), of("q", fast.Name, "h"))
	told := make(chan types.UID, 10)
	n.Changed = func(uid types.UID) { told <- uid }
	n.round(t.Context())
	if got := <-told; got != "q" {
		t.Errorf("told of %s", got)
	}
	<-hangs
	fast.Ails("h", entry(csipb.VolumeHealthErrorType_DEGRADED, "R", ""))
	for len(n.Of(podWith("q", "v"), nil)) == 0 { // the answer of the first round may still be under way
		n.round(t.Context())
	}
	if asked := len(slow.Calls()); asked != 2 { // about its storage, and about one volume
		t.Errorf("a driver that hangs was asked %d times", asked)
	}
	close(goOn)
	n.Manager.asked.Wait()
}

func TestAfterOneVolumeForWhichItHangsADriverIsNotAskedForTheOthers(t *testing.T) {
	for code, want := range map[codes.Code]int{codes.DeadlineExceeded: 1, codes.Internal: 3} {
		d := newDriver(t, driverName)
		d.Can = []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}
		d.Before("NodeGetVolumeHealth", fakecsi.Refuse(code, "no"))
		n := newNode(t, d)
		n.has(of("p", driverName, "a"), of("q", driverName, "b"), of("r", driverName, "c"))
		n.asked()
		if got := len(d.Calls()); got != want {
			t.Errorf("after %v it was asked %d times, want %d", code, got, want)
		}
	}
}

func backend(status csipb.StorageHealthErrorType, reason, message string, c *csipb.VolumeCapability) *csipb.NodeGetStorageHealthResponse_StorageBackendHealth {
	return &csipb.NodeGetStorageHealthResponse_StorageBackendHealth{Status: status, Reason: reason, Message: message, VolumeCapability: c}
}

// status is what the CSINode says.
func (n *node) status() string {
	n.t.Helper()
	object, err := n.client.StorageV1().CSINodes().Get(n.t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, h := range object.Status.StorageHealth {
		for _, c := range h.HealthConditions {
			one := fmt.Sprintf("%s %s/%s: %s", h.Name, c.Status, c.Reason, c.Message)
			if c.AccessMode != nil {
				one += " " + string(*c.AccessMode)
			}
			if c.VolumeMode != nil {
				one += " " + string(*c.VolumeMode)
			}
			if c.LastTransitionTime.IsZero() {
				one += " without a time"
			}
			out = append(out, one)
		}
	}
	return strings.Join(out, ", ")
}

func (n *node) requests() int { return len(n.client.Actions()) }

func TestTheClusterIsToldWhatIsWrongBehindADriver(t *testing.T) {
	d := newDriver(t, driverName)
	n := newNode(t, d)
	n.asked()
	before := n.requests()
	n.asked()
	if n.requests() != before {
		t.Errorf("the API server is asked while nothing is wrong")
	}
	many := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
	}
	d.StorageAils(backend(csipb.StorageHealthErrorType_STORAGE_UNREACHABLE, "Cut", "no route", nil),
		backend(csipb.StorageHealthErrorType_STORAGE_DEGRADED, "Slow", "", many), backend(csipb.StorageHealthErrorType_STORAGE_DEGRADED, "Slow", "", nil),
		backend(csipb.StorageHealthErrorType_UNKNOWN_STORAGE_HEALTH_ERROR_TYPE, "No", "", nil))
	n.asked()
	const all = driverName + " StorageDegraded/Slow: , " + driverName + " StorageDegraded/Slow:  ReadWriteMany Block, " + driverName + " StorageUnreachable/Cut: no route"
	want(t, "status", n.status(), all)
	d.Before("NodeGetStorageHealth", fakecsi.Refuse(codes.Unavailable, "no"))
	n.asked()
	want(t, "a driver that does not answer", n.status(), all)
	d.Before("NodeGetStorageHealth", nil)

	// Somebody else makes the object anew, and it is written again.
	api := n.client.StorageV1().CSINodes()
	object, err := api.Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Status = storagev1.CSINodeStatus{}
	if _, err := api.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	conflicts := 2
	n.client.PrependReactor("update", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts--
		return conflicts >= 0, nil, apierrors.NewConflict(schema.GroupResource{Resource: "csinodes"}, "n", errors.New("changed"))
	})
	n.asked()
	want(t, "made anew", n.status(), all)

	d.StorageAils()
	n.asked()
	want(t, "well again", n.status(), "")
}

func TestADriverThatGoesTakesItsHealthWithIt(t *testing.T) {
	d, other := newDriver(t, driverName), newDriver(t, "b.example.com")
	n := newNode(t, d, other)
	for _, d := range []*fakecsi.Driver{d, other} {
		d.StorageAils(backend(csipb.StorageHealthErrorType_STORAGE_DEGRADED, "Slow", "", nil))
	}
	n.asked()
	n.asked()
	want(t, "both", n.status(), "b.example.com StorageDegraded/Slow: , "+driverName+" StorageDegraded/Slow: ")
	if err := n.Drivers.Deregister(t.Context(), as(d)); err != nil {
		t.Fatal(err)
	}
	n.asked()
	want(t, "one is gone", n.status(), "b.example.com StorageDegraded/Slow: ")

	// A kubelet that begins later does not know of it; the CSINode does.
	object, err := n.client.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Spec.Drivers = object.Spec.Drivers[:1]
	if _, err := n.client.StorageV1().CSINodes().Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	later := newNode(t, d)
	later.client, later.Client = n.client, n.client
	d.StorageAils()
	later.asked()
	want(t, "later", later.status(), "")
}

func TestItEndsWithItsContext(t *testing.T) {
	n := newNode(t, newDriver(t, driverName))
	n.Period = 1
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := n.Run(ctx); err != nil {
		t.Error(err)
	}
}
