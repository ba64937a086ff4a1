package volume

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/kubelet/plugins"
	"wherry.dev/internal/mount"
	"wherry.dev/test/fakecsi"
	"wherry.dev/test/kills"
)

const driverName = "d.example.com"

func plugin(socket string) plugins.Plugin {
	return plugins.Plugin{Type: "CSIPlugin", Name: driverName, Endpoint: socket, Versions: []string{"1.0.0"}, Socket: socket}
}

// unattached is the object of a driver whose volumes need not be attached.
func unattached(change ...func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
	for _, f := range change {
		f(&d.Spec)
	}
	return d
}

func csiSource() v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "handle/1", FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"},
	}}
}

// newCSI is a node with a driver that has registered, and an API server with a volume of it.
func newCSI(t *testing.T, d *storagev1.CSIDriver) (*fakecsi.Driver, *claims, *Mounter) {
	t.Helper()
	driver := fakecsi.New(t, driverName)
	driver.Serve(t, "")
	c, m := newClaims(t, csiSource())
	addCSI(t, m, driver.Socket(), d)
	return driver, c, m
}

func addCSI(t *testing.T, m *Mounter, socket string, d *storagev1.CSIDriver) {
	t.Helper()
	client := fake.NewClientset()
	if d != nil {
		if _, err := client.StorageV1().CSIDrivers().Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	m.CSI, m.Attached = &CSI{Drivers: &csi.Drivers{Came: m.DriverCame}, Client: client}, &Attached{}
	if socket != "" {
		if err := m.CSI.Drivers.Register(t.Context(), plugin(socket)); err != nil {
			t.Fatal(err)
		}
	}
}

// restarted is the kubelet of the same node after a restart.
func restarted(t *testing.T, m *Mounter, driver *fakecsi.Driver) *Mounter {
	t.Helper()
	n := &Mounter{
		Dirs: m.Dirs, Objects: m.Objects, Volume: m.Volume, Tokens: m.Tokens, NodeName: m.NodeName, NodeLabels: m.NodeLabels,
		Freed: m.Freed, Warn: m.Warn, Tell: m.Tell,
	}
	n.CSI, n.Attached = &CSI{Drivers: &csi.Drivers{}, Client: m.CSI.Client}, &Attached{}
	if err := n.CSI.Drivers.Register(t.Context(), plugin(driver.Socket())); err != nil {
		t.Fatal(err)
	}
	return n
}

func clear(t *testing.T, m *Mounter, uid types.UID) {
	t.Helper()
	if err := m.Clear(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	if m.Left(uid) {
		t.Errorf("something of pod %s is left", uid)
	}
}

// nothingLeft checks that neither mounts nor files of volumes are on the node.
func nothingLeft(t *testing.T, m *Mounter) {
	t.Helper()
	points, err := mount.Under(m.Dirs.Root)
	if err != nil || len(points) > 0 {
		t.Errorf("still mounted: %v, %v", points, err)
	}
	err = filepath.WalkDir(filepath.Join(m.Dirs.Root, "plugins"), func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("left: %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func called(t *testing.T, d *fakecsi.Driver, calls ...string) {
	t.Helper()
	for i, c := range calls {
		calls[i] = "Node" + c + "Volume"
	}
	if got := d.Calls(); !slices.Equal(got, calls) {
		t.Errorf("the driver was called %q, want %q", got, calls)
	}
}

func TestPodsShareACSIVolume(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	first := set(t, m, claimPod("u1"))
	if want := filepath.Join(m.Dirs.Volumes("u1"), "kubernetes.io~csi", "pv", "mount"); first != want {
		t.Errorf("the volume is at %s, want %s", first, want)
	}
	if err := os.WriteFile(filepath.Join(first, "f"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	second := set(t, m, claimPod("u2"))
	want(t, filepath.Join(second, "f"), "kept", 0o644)
	staging := filepath.Join(m.Dirs.Root, "plugins/kubernetes.io/csi", driverName, sum("handle/1"), "globalmount")
	if got := fakecsi.Last[*csipb.NodePublishVolumeRequest](d); got.StagingTargetPath != staging || got.VolumeContext["a"] != "b" ||
		got.VolumeCapability.GetMount().GetFsType() != "ext4" ||
		got.VolumeCapability.AccessMode.Mode != csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		t.Errorf("published by %v", got)
	}
	m = restarted(t, m, d) // what stands is not set up again
	set(t, m, claimPod("u1"))
	clear(t, m, "u1")
	want(t, filepath.Join(second, "f"), "kept", 0o644)
	called(t, d, "Stage", "Publish", "Publish", "Unpublish")
	clear(t, m, "u2")
	called(t, d, "Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage")
	nothingLeft(t, m)
	third := set(t, m, claimPod("u3")) // a volume that comes back has its content
	want(t, filepath.Join(third, "f"), "kept", 0o644)
	clear(t, m, "u3")
}

func TestTheLastTwoPodsGoTogether(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	for _, uid := range []types.UID{"u1", "u2"} {
		set(t, m, claimPod(uid))
	}
	done := make(chan error)
	for _, uid := range []types.UID{"u1", "u2"} {
		go func() { done <- m.Clear(t.Context(), uid) }()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := d.Calls(); got[len(got)-1] != "NodeUnstageVolume" {
		t.Errorf("the volume is still staged: %q", got)
	}
	nothingLeft(t, m)
}

func TestAPodsOwnCSIVolume(t *testing.T) {
	d, _, m := newCSI(t, unattached(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount, s.TokenRequests = new(true), []storagev1.TokenRequest{{Audience: "x"}}
		s.RequiresRepublish = new(true)
	}))
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"k": []byte("v")}}
	if _, err := m.CSI.Client.CoreV1().Secrets("ns").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := podWith(v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, ReadOnly: new(true), VolumeAttributes: map[string]string{"a": "b"}, NodePublishSecretRef: &v1.LocalObjectReference{Name: "s"},
	}})
	pod.Spec.ServiceAccountName = "sa"
	again, err := m.Mount(t.Context(), pod, "v")
	if err != nil || again.IsZero() {
		t.Fatalf("got %v, %v", again, err)
	}
	got := fakecsi.Last[*csipb.NodePublishVolumeRequest](d)
	for key, value := range map[string]string{
		"a": "b", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "ns", "csi.storage.k8s.io/pod.uid": "u",
		"csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "true",
		"csi.storage.k8s.io/serviceAccount.tokens": `{"x":{"token":"tok-x","expirationTimestamp":"1970-01-01T00:33:20Z"}}`,
	} {
		if got.VolumeContext[key] != value {
			t.Errorf("%s: got %q, want %q", key, got.VolumeContext[key], value)
		}
	}
	if !got.Readonly || got.Secrets["k"] != "v" || got.VolumeId != "csi-"+sum("uv") || got.StagingTargetPath != "" {
		t.Errorf("published by %v", got)
	}
	m = restarted(t, m, d)
	if again, err := m.Mount(t.Context(), pod, "v"); err != nil || again.IsZero() {
		t.Errorf("after a restart: %v, %v", again, err)
	}
	called(t, d, "Publish")
	if again, err := m.Renew(t.Context(), pod, "v"); err != nil || again.IsZero() {
		t.Errorf("when it is due again: %v, %v", again, err)
	}
	called(t, d, "Publish", "Publish")
	clear(t, m, "u")
	called(t, d, "Publish", "Publish", "Unpublish")
	nothingLeft(t, m)
}

// devicePod has the volume as a device.
func devicePod(uid types.UID) *v1.Pod {
	pod := claimPod(uid)
	pod.Spec.Containers[0].VolumeMounts = nil
	pod.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	return pod
}

func TestACSIVolumeAsADevice(t *testing.T) {
	d, c, m := newCSI(t, unattached())
	d.Device = "/dev/null"
	c.volumes["pv"].Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	for _, uid := range []types.UID{"u1", "u2"} {
		link := set(t, m, devicePod(uid))
		var st unix.Stat_t
		if err := unix.Stat(link, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			t.Errorf("%s is no device: %v", link, err)
		}
	}
	root := filepath.Join(m.Dirs.Root, "plugins/kubernetes.io/csi/volumeDevices")
	if got := fakecsi.Last[*csipb.NodePublishVolumeRequest](d); got.TargetPath != filepath.Join(root, "publish/pv/u2") ||
		got.StagingTargetPath != filepath.Join(root, "staging/pv") || got.VolumeCapability.GetBlock() == nil {
		t.Errorf("published by %v", got)
	}
	m = restarted(t, m, d)
	set(t, m, devicePod("u1"))
	clear(t, m, "u1")
	called(t, d, "Stage", "Publish", "Publish", "Unpublish")
	clear(t, m, "u2")
	called(t, d, "Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage")
	nothingLeft(t, m)
}

func TestAPodThatWaitsForItsVolumeCanGo(t *testing.T) {
	d, _, m := newCSI(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	m.Attached.Written = func(context.Context) (string, error) { cancel(); return "", nil }
	if _, err := m.Mount(ctx, claimPod("u1"), "v"); err == nil {
		t.Fatal("the volume was never attached")
	}
	clear(t, m, "u1")
	called(t, d) // it was never asked
	nothingLeft(t, m)
}

func TestWhatADriverRefuses(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	for _, tc := range [][2]string{
		{"NodeStageVolume", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = no disk`},
		{"NodePublishVolume", `MountVolume.SetUp failed for volume "pv" : rpc error: code = Internal desc = no disk`},
	} {
		call, want := tc[0], tc[1]
		d.Before(call, fakecsi.Refuse(codes.Internal, "no disk"))
		if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", call, err, want)
		}
		d.Before(call, nil)
	}
	d.Before("NodeUnpublishVolume", fakecsi.Refuse(codes.Internal, "busy"))
	if err := m.Clear(t.Context(), "u1"); err == nil || !m.Left("u1") {
		t.Errorf("a volume that is still published: %v", err)
	}
	d.Before("NodeUnpublishVolume", nil)
	clear(t, m, "u1")
	nothingLeft(t, m)
}

func TestADriverThatLies(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	path := set(t, m, claimPod("u1"))
	staging := fakecsi.Last[*csipb.NodeStageVolumeRequest](d).StagingTargetPath
	d.Before("NodeUnstageVolume", func(context.Context) error { // something else is mounted, whatever it does
		return unix.Mount("tmpfs", staging+"/..", "tmpfs", 0, "")
	})
	clear(t, m, "u1")
	if mounted(t, path) {
		t.Error("the pod still has the volume")
	}
	if err := mount.UnmountStack(filepath.Dir(staging)); err != nil {
		t.Fatal(err)
	}
	d.Before("NodeUnstageVolume", nil)
	tended(t, m)
	nothingLeft(t, m)
}

func TestAPodWaitsForItsDriver(t *testing.T) {
	d, c, m := newCSI(t, unattached())
	if err := m.CSI.Drivers.Deregister(t.Context(), plugin(d.Socket())); err != nil {
		t.Fatal(err)
	}
	const want = `MountVolume.MountDevice failed for volume "pv" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: ` +
		`driver name ` + driverName + ` not found in the list of registered CSI drivers`
	if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := m.CSI.Drivers.Register(t.Context(), plugin(d.Socket())); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.freed, []types.UID{"u1"}) {
		t.Errorf("woken: %v", c.freed)
	}
	set(t, m, claimPod("u1"))
	clear(t, m, "u1")
}

func TestADriverThatHangsKeepsNoOtherPodWaiting(t *testing.T) {
	d, c, m := newCSI(t, unattached(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	}))
	hangs := make(chan struct{}, 1)
	d.Before("NodeStageVolume", func(ctx context.Context) error {
		hangs <- struct{}{}
		return fakecsi.Hang(ctx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.Mount(ctx, claimPod("u1"), "v")
		done <- err
	}()
	<-hangs
	other := podWith(v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}})
	set(t, m, other)
	clear(t, m, other.UID)
	cancel()
	if err := <-done; err == nil {
		t.Error("it hangs, and has succeeded")
	}
	d.Before("NodeStageVolume", nil)
	clear(t, m, "u1")
	if len(c.freed) > 0 {
		t.Errorf("woken: %v", c.freed)
	}
	nothingLeft(t, m)
}

func TestTheGroupOfACSIVolume(t *testing.T) {
	policy := func(p storagev1.FSGroupPolicy) *storagev1.CSIDriver {
		return unattached(func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = &p })
	}
	for name, tc := range map[string]struct {
		driver  *storagev1.CSIDriver
		change  func(*v1.PersistentVolume)
		can     csipb.NodeServiceCapability_RPC_Type
		gid     uint32
		asGroup string
	}{
		"by default":               {driver: unattached(), gid: 1234},
		"without a file system":    {driver: unattached(), change: func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = "" }},
		"written by several nodes": {driver: unattached(), change: func(pv *v1.PersistentVolume) { pv.Spec.AccessModes[0] = v1.ReadWriteMany }},
		"File": {driver: policy(storagev1.FileFSGroupPolicy), gid: 1234, change: func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes[0], pv.Spec.CSI.FSType = v1.ReadWriteMany, ""
		}},
		"None":          {driver: policy(storagev1.NoneFSGroupPolicy)},
		"by the driver": {driver: unattached(), can: csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, asGroup: "1234"},
	} {
		t.Run(name, func(t *testing.T) {
			d, c, m := newCSI(t, tc.driver)
			d.Can = append(slices.Clone(d.Can), tc.can)
			if tc.change != nil {
				tc.change(c.volumes["pv"])
			}
			pod := claimPod("u1")
			pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
			if got := stat(t, set(t, m, pod)).Gid; got != tc.gid {
				t.Errorf("the group is %d, want %d", got, tc.gid)
			}
			if got := fakecsi.Last[*csipb.NodePublishVolumeRequest](d).VolumeCapability.GetMount().GetVolumeMountGroup(); got != tc.asGroup {
				t.Errorf("the driver was told %q", got)
			}
			clear(t, m, "u1")
		})
	}
}

func TestDriversHaveVolumesOfOneKindOnly(t *testing.T) {
	_, _, m := newCSI(t, unattached())
	_, err := m.Mount(t.Context(), podWith(v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}), "v")
	const want = `MountVolume.NewMounter initialization failed for volume "v" : ` +
		`volume mode "Ephemeral" not supported by driver ` + driverName + ` (only supports ["Persistent"])`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAfterAReboot(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	path := set(t, m, claimPod("u1"))
	if err := mount.UnmountUnder(m.Dirs.Root); err != nil {
		t.Fatal(err)
	}
	m = restarted(t, m, d)
	set(t, m, claimPod("u1"))
	if !mounted(t, path) {
		t.Error("the volume is not there")
	}
	called(t, d, "Stage", "Publish", "Stage", "Publish")
	clear(t, m, "u1")
	nothingLeft(t, m)
}

// childEnv has what a process needs that is killed between two steps.
const childEnv = "WHERRY_TEST_CSI"

type child struct{ Root, Socket, Do string }

// TestKilledBetweenTwoSteps runs steps in a process of its own, which dies in the middle; another kubelet goes on.
func TestKilledBetweenTwoSteps(t *testing.T) {
	if doc := os.Getenv(childEnv); doc != "" {
		runChild(t, doc)
		return
	}
	for _, step := range []string{"csi-begun", "csi-staged", "csi-published", "csi-unpublished", "csi-unstaged"} {
		for _, next := range []string{"mount", "clear"} {
			t.Run(step+", then "+next, func(t *testing.T) {
				d, _, m := newCSI(t, unattached())
				do := "mount"
				if strings.HasPrefix(step, "csi-un") {
					do = "clear"
					set(t, m, claimPod("u1"))
				}
				kills.At(t, step, childEnv, child{m.Dirs.Root, d.Socket(), do}, "-test.run=^TestKilledBetweenTwoSteps$")
				m = restarted(t, m, d)
				if next == "mount" {
					path := set(t, m, claimPod("u1"))
					if !mounted(t, path) {
						t.Error("the volume is not there")
					}
				}
				clear(t, m, "u1")
				tended(t, m)
				if got := d.Calls(); step != "csi-begun" && got[len(got)-1] != "NodeUnstageVolume" && step != "csi-unstaged" {
					t.Errorf("the driver was called %q", got)
				}
				nothingLeft(t, m)
			})
		}
	}
}

func runChild(t *testing.T, doc string) {
	var c child
	if err := json.Unmarshal([]byte(doc), &c); err != nil {
		t.Fatal(err)
	}
	_, m := newClaims(t, csiSource())
	m.Dirs = criconfig.Dirs{Root: c.Root}
	addCSI(t, m, c.Socket, unattached())
	if c.Do == "clear" {
		clear(t, m, "u1")
		return
	}
	set(t, m, claimPod("u1"))
}

func TestManyPodsComeAndGo(t *testing.T) {
	_, _, m := newCSI(t, unattached())
	var failed atomic.Int32
	done := make(chan struct{})
	for i := range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			uid := types.UID("u" + string(rune('a'+i)))
			for range 5 {
				if _, err := m.Mount(t.Context(), claimPod(uid), "v"); err != nil {
					failed.Add(1)
					t.Errorf("mount: %v", err)
				}
				if err := m.Clear(t.Context(), uid); err != nil {
					failed.Add(1)
					t.Errorf("clear: %v", err)
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
	nothingLeft(t, m)
}

func TestADriverTellsHowFullItsVolumesAre(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	set(t, m, claimPod("u1"))
	places, err := Places(m.Dirs, "u1")
	if err != nil || len(places) != 1 || places[0].Claim != "c" || !places[0].Foreign {
		t.Fatalf("the pod has %+v, %v", places, err)
	}
	usage, err := m.DriverUsage(t.Context(), places[0].Path)
	if err != nil || len(usage) != 2 || usage[0].Used != 300 {
		t.Errorf("got %v, %v", usage, err)
	}
	d.Can = d.Can[:1]
	if _, err := m.DriverUsage(t.Context(), places[0].Path); !errors.Is(err, ErrNoUsage) {
		t.Errorf("a driver that cannot tell: %v", err)
	}
	if _, err := m.DriverUsage(t.Context(), filepath.Join(m.Dirs.Volumes("u1"), "kubernetes.io~nfs", "v")); !errors.Is(err, ErrNoUsage) {
		t.Errorf("a volume without a driver: %v", err)
	}
	clear(t, m, "u1")
}

func TestAPodWhoseDriverNeverCameCanGo(t *testing.T) {
	for _, own := range []bool{false, true} {
		d, _, m := newCSI(t, unattached(func(s *storagev1.CSIDriverSpec) {
			s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
		}))
		if err := m.CSI.Drivers.Deregister(t.Context(), plugin(d.Socket())); err != nil {
			t.Fatal(err)
		}
		pod := claimPod("u1")
		if own {
			pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}
		}
		if _, err := m.Mount(t.Context(), pod, "v"); err == nil {
			t.Error("a volume without a driver is there")
		}
		clear(t, m, "u1")
		nothingLeft(t, m)
	}
}

// A driver that was asked to publish a volume may never have got to it, and not know it.
func TestAVolumeThatItsDriverDoesNotKnow(t *testing.T) {
	d, _, m := newCSI(t, unattached())
	d.Before("NodePublishVolume", fakecsi.Refuse(codes.DeadlineExceeded, "slow"))
	if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); err == nil {
		t.Error("the volume is there")
	}
	d.Before("NodeUnpublishVolume", fakecsi.Refuse(codes.NotFound, "no such volume"))
	clear(t, m, "u1")
	nothingLeft(t, m)
	d.Before("NodePublishVolume", nil)
	set(t, m, claimPod("u2"))
	if err := m.Clear(t.Context(), "u2"); err == nil {
		t.Error("what is mounted was taken for unknown")
	}
	d.Before("NodeUnpublishVolume", nil)
	clear(t, m, "u2")
	nothingLeft(t, m)
}
