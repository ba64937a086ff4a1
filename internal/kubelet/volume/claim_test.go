package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/mount"
)

// claims is an API server with the claim "c", and the volume "pv" that it is bound to.
type claims struct {
	objs
	mu      sync.Mutex
	volumes map[string]*v1.PersistentVolume
	freed   []types.UID
	warned  []string
}

func newClaims(t *testing.T, src v1.PersistentVolumeSource) (*claims, *Mounter) {
	c := &claims{
		objs: objs{claim: map[string]*v1.PersistentVolumeClaim{"c": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "claim"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}}},
		volumes: map[string]*v1.PersistentVolume{"pv": {
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: v1.PersistentVolumeSpec{
				PersistentVolumeSource: src, ClaimRef: &v1.ObjectReference{Namespace: "ns", Name: "c", UID: "claim"},
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: "host", Operator: v1.NodeSelectorOpIn, Values: []string{"n"}}},
				}}}},
			},
		}},
	}
	m := newMounter(t, objs{})
	m.Objects = func(context.Context) Objects { return c }
	m.Volume = func(_ context.Context, name string) (*v1.PersistentVolume, error) {
		if pv := c.volumes[name]; pv != nil {
			return pv, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name)
	}
	m.NodeLabels = func() map[string]string { return map[string]string{"host": "n"} }
	m.Freed = func(uid types.UID) { c.freed = append(c.freed, uid) }
	m.Warn = func(_ *v1.Pod, reason, message string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.warned = append(c.warned, reason+": "+message)
	}
	return c, m
}

func ofClaim(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func localAt(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

func claimPod(uid types.UID) *v1.Pod {
	pod := podWith(ofClaim("c"))
	pod.UID = uid
	return pod
}

func mounted(t *testing.T, path string) bool {
	t.Helper()
	ok, err := mount.Mounted(path)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestAClaimThatCannotBeUsedSaysWhy(t *testing.T) {
	block := v1.PersistentVolumeBlock
	const wait = `Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: `
	const about = wait + "error processing PVC ns/c: "
	for name, tc := range map[string]struct {
		change func(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, pod *v1.Pod)
		want   string
	}{
		"none": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, pod *v1.Pod) {
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "x"
		}, wait + `error processing PVC ns/x: failed to fetch PVC from API server: persistentvolumeclaim "x" not found`},
		"pending": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Status.Phase = v1.ClaimPending },
			about + "PVC is not bound"},
		"lost": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Status.Phase = v1.ClaimLost },
			about + "PVC is not bound"},
		"without a volume": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Spec.VolumeName = "" },
			about + "PVC has empty pvc.Spec.VolumeName"},
		"being deleted": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) {
			c.DeletionTimestamp = new(metav1.Now())
		}, about + "PVC is being deleted"},
		"volume gone": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Spec.VolumeName = "gone" },
			about + `failed to fetch PV gone from API server: persistentvolumes "gone" not found`},
		"volume free": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) { pv.Spec.ClaimRef = nil },
			about + "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"},
		"another of its name": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) { pv.Spec.ClaimRef.UID = "old" },
			about + "found PV object pv but its pv.Spec.ClaimRef.UID old does not point to claim.UID claim"},
		"device mounted": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) { pv.Spec.VolumeMode = &block },
			wait + "volume v has volumeMode Block, but is specified in volumeMounts"},
		"directory as a device": {func(_ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, pod *v1.Pod) {
			pod.Spec.Containers[0].VolumeMounts, pod.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
		}, wait + "volume v has volumeMode Filesystem, but is specified in volumeDevices"},
		"somebody else's": {func(_ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, pod *v1.Pod) {
			pod.Name, pod.Spec.Volumes[0].VolumeSource = "c", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
			pod.Spec.Volumes[0].Name, pod.Name = "v", "p"
		}, wait + `error processing PVC ns/p-v: failed to fetch PVC from API server: persistentvolumeclaim "p-v" not found`},
		"another node's": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "other"
		}, `MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms`},
		"no such path": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.Local.Path = "/nonexistent"
		},
			`MountVolume.NewMounter initialization failed for volume "pv" : path "/nonexistent" does not exist`},
		"a path that climbs": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.Local.Path = "/tmp/../etc"
		},
			`MountVolume.SetUp failed for volume "pv" : invalid path: /tmp/../etc must not contain '..'`},
		"everything": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) { pv.Spec.Local.Path = "/" },
			`MountVolume.SetUp failed for volume "pv" : invalid path: / has, or is among, the files that the kubelet keeps`},
		"a file": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.Local.Path = "/etc/hostname"
		},
			`path "/etc/hostname" is not a directory`},
		"a character device": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, pod *v1.Pod) {
			pod.Spec.Containers[0].VolumeMounts, pv.Spec.VolumeMode, pv.Spec.Local.Path = nil, &block, "/dev/null"
		}, `MapVolume.MapPodDevice failed for volume "pv" : path "/dev/null" is not a block device`},
		"an option of others": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.MountOptions = []string{"ro,vers=4"}
		},
			`mount option "vers=4" means nothing for a local directory`},
		"hostPath of another type": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/etc/hostname", Type: new(v1.HostPathDirectory)}}
		}, `MountVolume.SetUp failed for volume "pv" : hostPath type check failed: /etc/hostname is not a directory`},
		"hostPath with options": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}
			pv.Spec.MountOptions = []string{"ro"}
		}, `MountVolume.MountOptionSupport check failed for volume "pv" : Mount options are not supported`},
		"csi": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, _ *v1.Pod) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{}}
		}, `MountVolume.SetUp failed for volume "pv" : volumes of this kind (csi) are not supported by this node`},
	} {
		c, m := newClaims(t, localAt(t.TempDir()))
		pod := claimPod("u")
		tc.change(c.claim["c"], c.volumes["pv"], pod)
		_, err := m.Mount(t.Context(), pod, "v")
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) && !strings.HasSuffix(err.Error(), tc.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, tc.want)
		}
		reason := "FailedMount"
		if strings.HasPrefix(tc.want, "MapVolume") {
			reason = "FailedMapVolume"
		}
		if f, ok := errors.AsType[*Failure](err); !ok || f.Reason != reason {
			t.Errorf("%s: %T is no %s", name, err, reason)
		}
		if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
			t.Errorf("%s: left behind: %v", name, err)
		}
	}
}

func TestAnEphemeralVolumeMustBeThePodsOwn(t *testing.T) {
	c, m := newClaims(t, localAt(t.TempDir()))
	pod := podWith(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})
	own := c.claim["c"].DeepCopy()
	own.Name = "p-v"
	c.claim["p-v"] = own
	if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "PVC ns/p-v was not created for pod ns/p (pod is not owner)") {
		t.Errorf("a stranger's claim: %v", err)
	}
	own.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
	if dir := set(t, m, pod); !mounted(t, dir) {
		t.Error("it is not mounted")
	}
}

// TestLocalVolume: two pods share it, and what is in it outlives both of them.
func TestLocalVolume(t *testing.T) {
	disk := t.TempDir()
	c, m := newClaims(t, localAt(disk))
	c.volumes["pv"].Spec.MountOptions = []string{"noexec", "nosuid"}
	first, second := claimPod("u1"), claimPod("u2")
	dir := set(t, m, first)
	if dir != filepath.Join(m.Dirs.Pod("u1"), "volumes/kubernetes.io~local-volume/pv") || !mounted(t, dir) {
		t.Errorf("%s is not mounted", dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Flags&unix.ST_NOEXEC == 0 || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_RDONLY != 0 {
		t.Errorf("options %x, %v", st.Flags, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := set(t, m, second)
	want(t, filepath.Join(other, "f"), "data", 0o644)

	// The claim goes its own ways. What is mounted stays, also for a kubelet that starts again.
	c.claim["c"].UID, c.claim["c"].Spec.VolumeName = "new", "elsewhere"
	again := &Mounter{Dirs: m.Dirs, Objects: m.Objects, Volume: m.Volume}
	set(t, again, first)

	if err := m.Clear(t.Context(), first.UID); err != nil || m.Left(first.UID) || mounted(t, dir) {
		t.Errorf("left behind: %v", err)
	}
	want(t, filepath.Join(other, "f"), "data", 0o644)
	if err := m.Clear(t.Context(), second.UID); err != nil || m.Left(second.UID) {
		t.Errorf("left behind: %v", err)
	}
	want(t, filepath.Join(disk, "f"), "data", 0o644)
}

// TestOneClaimTwiceInAPod: both volumes are the same mount, which is made once although they come at the same time.
func TestOneClaimTwiceInAPod(t *testing.T) {
	_, m := newClaims(t, localAt(t.TempDir()))
	pod := claimPod("u")
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "w", VolumeSource: ofClaim("c")})
	pod.Spec.Volumes[1].PersistentVolumeClaim.ReadOnly = true
	var both sync.WaitGroup
	for _, name := range []string{"v", "w"} {
		both.Go(func() {
			if _, err := m.Mount(t.Context(), pod, name); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	points, err := mount.Under(m.Dirs.Root)
	if err != nil || len(points) != 1 {
		t.Errorf("mounts %v, %v", points, err)
	}
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "w", MountPath: "/w"})
	list, err := m.ContainerMounts(t.Context(), ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0]})
	if err != nil || list[0].Readonly || !list[1].Readonly || list[0].HostPath != list[1].HostPath {
		t.Errorf("%v, %v", list, err)
	}
	if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
		t.Errorf("left behind: %v", err)
	}
}

func TestReadWriteOncePod(t *testing.T) {
	c, m := newClaims(t, localAt(t.TempDir()))
	c.volumes["pv"].Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	first, second := claimPod("u1"), claimPod("u2")
	set(t, m, first)
	if _, err := m.Mount(t.Context(), second, "v"); err == nil ||
		!strings.HasSuffix(err.Error(), "volume uses the ReadWriteOncePod access mode and is already in use by another pod") {
		t.Errorf("both have it: %v", err)
	}
	if err := m.Clear(t.Context(), first.UID); err != nil || !slices.Equal(c.freed, []types.UID{"u2"}) {
		t.Errorf("woken: %v, %v", c.freed, err)
	}
	set(t, m, second)
}

func TestGroupOfASharedVolume(t *testing.T) {
	disk := t.TempDir()
	c, m := newClaims(t, localAt(disk))
	if err := os.WriteFile(filepath.Join(disk, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	group := func(uid types.UID, gid int64) *v1.Pod {
		pod := claimPod(uid)
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &gid}
		return pod
	}
	var all sync.WaitGroup
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		all.Go(func() {
			if _, err := m.Mount(t.Context(), group(uid, 4242), "v"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if st := stat(t, filepath.Join(disk, "f")); st.Gid != 4242 || st.Mode&0o7777 != 0o660 {
		t.Errorf("a file: %d %o", st.Gid, st.Mode)
	}
	if st := stat(t, disk); st.Gid != 4242 || st.Mode&0o2770 != 0o2770 {
		t.Errorf("the volume: %d %o", st.Gid, st.Mode)
	}
	set(t, m, group("u4", 7))
	if st := stat(t, disk); st.Gid != 4242 || len(c.warned) != 1 ||
		c.warned[0] != "AlreadyMountedVolume: The requested fsGroup is 7, but the volume pv has GID 4242. The volume may not be shareable." {
		t.Errorf("%d, %q", st.Gid, c.warned)
	}
	reader := group("u5", 9)
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	for _, uid := range []types.UID{"u1", "u2", "u3", "u4"} {
		if err := m.Clear(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	set(t, m, reader)
	if st := stat(t, disk); st.Gid != 4242 {
		t.Error("a pod that only reads took the volume over")
	}
}

// TestAVolumeThatHangs: only its own pod waits, and can stop waiting. Nothing takes effect once the pod is cleared.
func TestAVolumeThatHangs(t *testing.T) {
	disk := t.TempDir()
	c, m := newClaims(t, localAt(disk))
	hang, asked := make(chan struct{}), make(chan struct{}, 9)
	find := m.Volume
	m.Volume = func(ctx context.Context, name string) (*v1.PersistentVolume, error) { // as the kernel, it knows no contexts
		asked <- struct{}{}
		<-hang
		return find(ctx, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := m.Mount(ctx, claimPod("u1"), "v")
		gone <- err
	}()
	<-asked
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("it is not cancelled: %v", err)
	}
	set(t, m, podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})) // of another pod
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := m.Clear(short, "u1"); !errors.Is(err, errHangs) {
		t.Errorf("cleared, while something is still going on: %v", err)
	}
	cleared := make(chan error, 1)
	go func() { cleared <- m.Clear(t.Context(), "u1") }()
	close(hang)
	if err := <-cleared; err != nil || m.Left("u1") {
		t.Errorf("left behind: %v", err)
	}
	if points, err := mount.Under(m.Dirs.Root); err != nil || len(points) != 0 {
		t.Errorf("mounts %v, %v", points, err)
	}
	_ = c
}

func TestBlockVolume(t *testing.T) {
	device := firstBlockDevice(t)
	block := v1.PersistentVolumeBlock
	c, m := newClaims(t, localAt(device))
	c.volumes["pv"].Spec.VolumeMode = &block
	pod := claimPod("u")
	ctr := &pod.Spec.Containers[0]
	ctr.VolumeMounts, ctr.VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/data"}}
	for _, readOnly := range []bool{false, true} {
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = readOnly
		link := set(t, m, pod)
		if to, err := os.Readlink(link); err != nil || to != device || link != filepath.Join(m.Dirs.Pod("u"), "volumeDevices/kubernetes.io~local-volume/pv") {
			t.Errorf("%s leads to %s, %v", link, to, err)
		}
		devices, err := m.ContainerDevices(pod, ctr)
		if access := map[bool]string{false: "mrw", true: "mr"}[readOnly]; err != nil || len(devices) != 1 ||
			devices[0].HostPath != link || devices[0].ContainerPath != "/dev/data" || devices[0].Permissions != access {
			t.Errorf("%v, %v", devices, err)
		}
	}
	if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
		t.Errorf("left behind: %v", err)
	}
	if _, err := os.Stat(device); err != nil {
		t.Errorf("the device: %v", err)
	}
}

func firstBlockDevice(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/dev/loop[0-9]*", "/dev/[vs]d*", "/dev/nvme*n*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return found[0]
		}
	}
	t.Skip("this machine has no block device")
	return ""
}

func TestHostPathVolumeOfAClaim(t *testing.T) {
	disk := t.TempDir()
	c, m := newClaims(t, v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(disk, "made"), Type: new(v1.HostPathDirectoryOrCreate)}})
	pod := claimPod("u")
	if dir := set(t, m, pod); dir != filepath.Join(disk, "made") {
		t.Error(dir)
	}
	c.volumes["pv"].Spec.HostPath.Path = disk // only a kubelet that starts again asks
	if dir := pathOf(t, m, pod); dir != filepath.Join(disk, "made") {
		t.Error(dir)
	}
	if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
		t.Errorf("left behind: %v", err)
	}
	if _, err := os.Stat(filepath.Join(disk, "made")); err != nil {
		t.Error(err)
	}
}

// TestLeftoversOfAKill: records and mounts that a killed kubelet left are found by the next one, whatever was finished.
func TestLeftoversOfAKill(t *testing.T) {
	disk := t.TempDir()
	_, m := newClaims(t, localAt(disk))
	pod := claimPod("u")
	dir := set(t, m, pod)
	if err := os.WriteFile(filepath.Join(disk, "f"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	stack := func() { // as if two kubelets had mounted it
		if err := unix.Mount(disk, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]func(){
		"no record":     func() { must(t, os.RemoveAll(m.Dirs.Claims("u"))) },
		"a bad record":  func() { must(t, os.WriteFile(boundFile(m.Dirs, "u", "v"), []byte("{"), 0o600)) },
		"half a record": func() { must(t, os.WriteFile(filepath.Join(m.Dirs.Claims("u"), ".tmp-v.json"), nil, 0o600)) },
		"mounted twice": stack,
		"not mounted":   func() { must(t, mount.Unmount(dir)) },
		"nothing":       func() {},
	} {
		damage()
		next := &Mounter{Dirs: m.Dirs, Objects: m.Objects, Volume: m.Volume, NodeLabels: m.NodeLabels}
		if at := set(t, next, pod); at != dir || !mounted(t, dir) {
			t.Errorf("%s: %s is not mounted", name, dir)
		}
		damage()
		if err := (&Mounter{Dirs: m.Dirs}).Clear(t.Context(), pod.UID); err != nil || next.Left(pod.UID) {
			t.Errorf("%s: left behind: %v", name, err)
		}
		if points, err := mount.Under(m.Dirs.Root); err != nil || len(points) != 0 {
			t.Errorf("%s: mounts %v, %v", name, points, err)
		}
		want(t, filepath.Join(disk, "f"), "data", 0o600)
		set(t, m, pod)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNFSArguments(t *testing.T) {
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{MountOptions: []string{"vers=4.2", "soft"}}}
	for _, tc := range []struct {
		server, path string
		spec         spec
		want         string
	}{
		{"s", "/x", spec{}, "[s:/x /dir]"},
		{"fd00::1", "/x", spec{}, "[[fd00::1]:/x /dir]"},
		{"s", "/x", spec{pv: pv}, "[s:/x /dir -o vers=4.2,soft]"},
		{"s", "/x", spec{pv: pv, readOnly: true}, "[s:/x /dir -o vers=4.2,soft,ro]"},
		{"-o", "/x", spec{}, `"-o" is not the name of an NFS server`},
		{"", "/x", spec{}, `"" is not the name of an NFS server`},
	} {
		args, err := nfsArguments(&v1.NFSVolumeSource{Server: tc.server, Path: tc.path}, &tc.spec, "/dir")
		got := fmt.Sprint(args)
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s:%s: %s, want %s", tc.server, tc.path, got, tc.want)
		}
	}
}
