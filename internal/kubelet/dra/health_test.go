package dra

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/plugins"
)

// monitor is a driver that tells of its devices' health.
type monitor struct {
	healthv1.UnsafeDRAResourceHealthServer
	say chan []*healthv1.DeviceHealth
}

func (h *monitor) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest, to grpc.ServerStreamingServer[healthv1.NodeWatchResourcesResponse]) error {
	for {
		select {
		case all := <-h.say:
			if err := to.Send(&healthv1.NodeWatchResourcesResponse{Devices: all}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return to.Context().Err()
		}
	}
}

func of(name string, is healthv1.HealthStatus) *healthv1.DeviceHealth {
	return &healthv1.DeviceHealth{Device: &healthv1.DeviceIdentifier{PoolName: "pool", DeviceName: name}, Health: is}
}

// told returns the health of a pod's containers as text.
func told(m *Manager, pod *v1.Pod) string {
	var out []string
	for c, all := range m.Health(pod) {
		for _, st := range all {
			for _, h := range st.Resources {
				out = append(out, fmt.Sprintf("%s %s %s=%s", c, st.Name, h.ResourceID, h.Health))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestHealthOfDevices is in the statuses of pods that have them, which are woken when it changes.
func TestHealthOfDevices(t *testing.T) {
	for _, version := range []string{healthv1.DRAResourceHealthService, healthv1alpha1.DRAResourceHealthService} {
		t.Run(version, func(t *testing.T) {
			m := newManager(t, t.TempDir(), allocated("x", []string{"p"}, "gpu.example.com"))
			looks := make(chan types.UID, 10)
			m.Look = func(uid types.UID) { looks <- uid }
			d := startDriver(t, m, "gpu.example.com")
			p := podWith("p", "x")
			p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "for-x", Request: "one"}}}}, {Name: "other"}}
			prepare(t, m, p)
			wantString(t, "nobody has said anything", told(m, p), "c claim:for-x/one gpu.example.com/gpu=x-a=Unknown, c claim:for-x/one gpu.example.com/gpu=x-all=Unknown")

			h := &monitor{say: make(chan []*healthv1.DeviceHealth)}
			s := startDriverServer(t, func(s *grpc.Server) {
				healthv1.RegisterDRAResourceHealthServer(s, h)
				healthv1alpha1.RegisterDRAResourceHealthServer(s, healthv1.V1ServerWrapper{Server: h})
			})
			if err := m.Register(t.Context(), plugins.Plugin{Name: d.name, Endpoint: s, Versions: []string{drav1.DRAPluginService, version}}); err != nil {
				t.Fatal(err)
			}
			h.say <- []*healthv1.DeviceHealth{of("a", healthv1.HealthStatus_HEALTHY), of("elsewhere", healthv1.HealthStatus_UNHEALTHY)}
			if uid := <-looks; uid != p.UID {
				t.Errorf("%s looks", uid)
			}
			wantString(t, "healthy", told(m, p), "c claim:for-x/one gpu.example.com/gpu=x-a=Healthy, c claim:for-x/one gpu.example.com/gpu=x-all=Unknown")
			h.say <- []*healthv1.DeviceHealth{of("a", healthv1.HealthStatus_HEALTHY)} // the same: nobody has to look
			h.say <- []*healthv1.DeviceHealth{of("a", healthv1.HealthStatus_UNHEALTHY)}
			<-looks
			wantString(t, "unhealthy", told(m, p), "c claim:for-x/one gpu.example.com/gpu=x-a=Unhealthy, c claim:for-x/one gpu.example.com/gpu=x-all=Unknown")
			if len(looks) > 0 {
				t.Error("it was woken for nothing")
			}
			if err := m.Deregister(t.Context(), plugins.Plugin{Name: d.name, Endpoint: s}); err != nil {
				t.Fatal(err)
			}
			<-looks
			wantString(t, "the driver is gone", told(m, p), "c claim:for-x/one gpu.example.com/gpu=x-a=Unknown, c claim:for-x/one gpu.example.com/gpu=x-all=Unknown")
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheMessageOfADriver is told with the health of a device, and a new one by itself. It has no more than 1,024 bytes.
func TestTheMessageOfADriver(t *testing.T) {
	changes := make(chan string, 10)
	d := &Drivers{HealthChanged: func(driver string) { changes <- driver }}
	in := &instance{plugin: plugins.Plugin{Name: "g"}}
	d.byName = map[string][]*instance{"g": {in}}
	for _, tc := range []struct{ say, want string }{
		{"too hot", "too hot"},
		{strings.Repeat("é", 512), strings.Repeat("é", 512)},
		{strings.Repeat("é", 513), strings.Repeat("é", 510) + "..."}, // half of the 511th would remain
		{"", ""},
	} {
		a := of("a", healthv1.HealthStatus_UNHEALTHY)
		a.Message = tc.say
		d.noteHealth(in, &healthv1.NodeWatchResourcesResponse{Devices: []*healthv1.DeviceHealth{a}}, time.Now())
		is := d.health("g", device{"pool", "a"}).of("id")
		if is.Health != v1.ResourceHealthStatusUnhealthy || ptr.Deref(is.Message, "") != tc.want || tc.want == "" && is.Message != nil {
			t.Errorf("%.20q: %v", tc.say, is)
		}
		select {
		case <-changes:
		default:
			t.Errorf("%.20q: nobody was told", tc.say)
		}
	}
	in.expiry.Stop()
}

// TestHealthThatNobodyRenews gets unknown, and that is told.
func TestHealthThatNobodyRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := make(chan string, 10)
		d := &Drivers{HealthChanged: func(driver string) { changes <- driver }}
		in := &instance{plugin: plugins.Plugin{Name: "g"}}
		d.byName = map[string][]*instance{"g": {in}}
		a, b := of("a", healthv1.HealthStatus_HEALTHY), of("b", healthv1.HealthStatus_HEALTHY)
		b.HealthCheckTimeoutSeconds = 300
		d.noteHealth(in, &healthv1.NodeWatchResourcesResponse{Devices: []*healthv1.DeviceHealth{a, b}}, time.Now())
		<-changes
		is := func(name string, want v1.ResourceHealthStatus) {
			t.Helper()
			if got := d.health("g", device{"pool", name}).status; got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		time.Sleep(29 * time.Second)
		is("a", v1.ResourceHealthStatusHealthy)
		start := time.Now()
		<-changes
		if waited := time.Since(start); waited > 2*time.Second {
			t.Errorf("told after %v", waited)
		}
		is("a", v1.ResourceHealthStatusUnknown)
		is("b", v1.ResourceHealthStatusHealthy)
		<-changes
		is("b", v1.ResourceHealthStatusUnknown)
		time.Sleep(time.Hour)
		if len(changes) > 0 {
			t.Error("told again")
		}
	})
}
