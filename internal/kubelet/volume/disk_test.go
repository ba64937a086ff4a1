package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/disks"
	"wherry.dev/internal/mount"
	testdisks "wherry.dev/test/disks"
	"wherry.dev/test/fakeiscsi"
	"wherry.dev/test/kills"
)

const (
	iqn    = "iqn.2001-04.com.example:storage"
	portal = "10.0.0.1:3260"
)

func onISCSI(change ...func(*v1.ISCSIPersistentVolumeSource)) v1.PersistentVolumeSource {
	src := &v1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: iqn, Lun: 1, ISCSIInterface: "default", FSType: "ext4"}
	for _, f := range change {
		f(src)
	}
	return v1.PersistentVolumeSource{ISCSI: src}
}

// newISCSI is a node with open-iscsi, and a target that offers two disks.
func newISCSI(t *testing.T, change ...func(*v1.ISCSIPersistentVolumeSource)) (*fakeiscsi.Node, *claims, *Mounter) {
	t.Helper()
	node := fakeiscsi.New(t)
	node.Offer(iqn, 1, testdisks.Loop(t, 16))
	node.Offer(iqn, 2, testdisks.Loop(t, 16))
	c, m := newClaims(t, onISCSI(change...))
	m.disks = disks.Node{Root: node.Root, Run: node.Run}
	return node, c, m
}

// second is a pod with a claim of its own, for another disk of the target.
func second(c *claims, change ...func(*v1.ISCSIPersistentVolumeSource)) *v1.Pod {
	pv, claim := c.volumes["pv"].DeepCopy(), c.claim["c"].DeepCopy()
	pv.Name, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "pv2", "c2", "claim2"
	pv.Spec.PersistentVolumeSource = onISCSI(append(change, func(s *v1.ISCSIPersistentVolumeSource) { s.Lun = 2 })...)
	claim.Name, claim.UID, claim.Spec.VolumeName = "c2", "claim2", "pv2"
	c.volumes["pv2"], c.claim["c2"] = pv, claim
	pod := podWith(ofClaim("c2"))
	pod.UID = "second"
	return pod
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantHello checks that a pod finds what another one has written.
func wantHello(t *testing.T, path string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != "hello" {
		t.Errorf("%s has %q, %v", path, got, err)
	}
}

// left checks what a node with open-iscsi has when all pods are gone.
func left(t *testing.T, node *fakeiscsi.Node, m *Mounter) {
	t.Helper()
	if s, r := node.Sessions(), node.Records(); len(s) > 0 || len(r) > 0 {
		t.Errorf("left: sessions %q, records %q", s, r)
	}
	nothingLeft(t, m)
}

// TestPodsShareAnISCSIDisk of which the node makes a file system. It stays when the pods have gone, and so does what is in it.
func TestPodsShareAnISCSIDisk(t *testing.T) {
	node, _, m := newISCSI(t)
	a := set(t, m, claimPod("u1"))
	writeFile(t, filepath.Join(a, "file"), "hello")
	b := set(t, m, claimPod("u2"))
	wantHello(t, filepath.Join(b, "file"))
	if got := node.Sessions(); !slices.Equal(got, []string{portal}) {
		t.Errorf("sessions %q", got)
	}
	if got := node.Setting(iqn+" "+portal+" default", "node.session.scan"); got != "manual" {
		t.Errorf("the session looks for disks %q: those of others come, too", got)
	}
	clear(t, m, "u1")
	if !mounted(t, b) {
		t.Error("unmounted under a pod")
	}
	clear(t, m, "u2")
	left(t, node, m)
	wantHello(t, filepath.Join(set(t, m, claimPod("u3")), "file"))
	clear(t, m, "u3")
	left(t, node, m)
}

// TestOneDiskByTwoPortals is one disk: mounted by two sessions, it would be written to by two that do not know each other.
func TestOneDiskByTwoPortals(t *testing.T) {
	node, c, m := newISCSI(t)
	other := second(c, func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "10.0.0.2" })
	c.volumes["pv2"].Spec.ISCSI.Lun = 1
	writeFile(t, filepath.Join(set(t, m, claimPod("u1")), "file"), "hello")
	path := set(t, m, other)
	wantHello(t, filepath.Join(path, "file"))
	if got := node.Sessions(); !slices.Equal(got, []string{portal}) {
		t.Errorf("sessions %q", got)
	}
	used, err := VolumesInUse(m.Dirs)
	if want := []v1.UniqueVolumeName{"kubernetes.io/iscsi/10.0.0.1:" + iqn + ":1", "kubernetes.io/iscsi/10.0.0.2:" + iqn + ":1"}; err != nil || !slices.Equal(used, want) {
		t.Errorf("in use: %q, %v", used, err)
	}
	clear(t, m, "u1")
	wantHello(t, filepath.Join(path, "file"))
	clear(t, m, other.UID)
	left(t, node, m)
}

// TestTwoDisksOfOneTarget share its session, which ends with the last of them.
func TestTwoDisksOfOneTarget(t *testing.T) {
	node, c, m := newISCSI(t)
	other := second(c)
	set(t, m, claimPod("u1"))
	b := set(t, m, other)
	if got := node.Sessions(); !slices.Equal(got, []string{portal}) {
		t.Errorf("sessions %q", got)
	}
	clear(t, m, "u1")
	if got := node.Sessions(); !slices.Equal(got, []string{portal}) || !mounted(t, b) {
		t.Errorf("sessions %q while a pod needs them", got)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(node.Disks()) != 1 && time.Now().Before(deadline) { // the kernel forgets the other one
		time.Sleep(time.Millisecond)
	}
	if got := node.Disks(); len(got) != 1 {
		t.Errorf("disks %q: the one that no pod has is still there", got)
	}
	clear(t, m, other.UID)
	left(t, node, m)
}

// TestANodeIsTakenDown: its disks are given up, and its pods find theirs again when it comes back.
func TestANodeIsTakenDown(t *testing.T) {
	device := testdisks.Loop(t, 16)
	_, m := newClaims(t, localAt(device))
	writeFile(t, filepath.Join(set(t, m, claimPod("u1")), "file"), "hello")
	must(t, mount.UnmountUnder(m.Dirs.Root))
	must(t, GiveUpDisks(t.Context(), m.Dirs))
	nothingLeft(t, m)
	wantHello(t, filepath.Join(set(t, m, claimPod("u1")), "file"))
	clear(t, m, "u1")
	nothingLeft(t, m)
}

// TestASessionOfTheAdministrators is used, and left alone.
func TestASessionOfTheAdministrators(t *testing.T) {
	node, _, m := newISCSI(t)
	node.Login(t, iqn, portal)
	set(t, m, claimPod("u1"))
	clear(t, m, "u1")
	if got := node.Sessions(); !slices.Equal(got, []string{portal}) {
		t.Errorf("sessions %q", got)
	}
	nothingLeft(t, m)
}

// TestADiskIsNotTakenFromWhoUsesIt outside of pods. The pod goes nevertheless, and the disk goes when nobody uses it any more.
func TestADiskIsNotTakenFromWhoUsesIt(t *testing.T) {
	node, _, m := newISCSI(t)
	path := set(t, m, claimPod("u1"))
	elsewhere := t.TempDir()
	run(t, "mount", "--bind", path, elsewhere)
	clear(t, m, "u1")
	if used, err := disksInUse(m.Dirs); err != nil || len(used) != 1 || len(node.Sessions()) != 1 {
		t.Errorf("used %q, sessions %q: %v", used, node.Sessions(), err)
	}
	defer tends(t, m)()
	// A pod that comes meanwhile is told, and has it afterwards.
	if _, err := m.Mount(t.Context(), claimPod("u2"), "v"); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("got %v", err)
	}
	run(t, "umount", elsewhere)
	path = set(t, m, claimPod("u2"))
	time.Sleep(2 * leaveBase)
	if !mounted(t, path) || len(node.Sessions()) != 1 {
		t.Errorf("under a pod: mounted %v, sessions %q", mounted(t, path), node.Sessions())
	}
	run(t, "mount", "--bind", path, elsewhere)
	clear(t, m, "u2")
	run(t, "umount", elsewhere)
	awaitNoDisks(t, m)
	left(t, node, m)
}

// awaitNoDisks waits until the node has no disk.
func awaitNoDisks(t *testing.T, m *Mounter) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		have, err := allDisks(m.Dirs, "*")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("still on the node: %v, %v", have, err)
		}
		if len(have) == 0 {
			return
		}
	}
}

// iscsiadm may fail for as long as a target does not answer. The pod goes; after a restart the kubelet goes on with the disk.
func TestAPodDoesNotWaitForATargetThatDoesNotAnswer(t *testing.T) {
	node, _, m := newISCSI(t)
	set(t, m, claimPod("u1"))
	var refusing atomic.Bool
	refusing.Store(true)
	node.Refuse = func(args string) error {
		if refusing.Load() && strings.Contains(args, "--logout") {
			return fakeiscsi.Exit(8)
		}
		return nil
	}
	clear(t, m, "u1")
	if got := node.Sessions(); len(got) != 1 {
		t.Fatalf("sessions %q", got)
	}
	refusing.Store(false)
	anew := &Mounter{Dirs: m.Dirs, disks: m.disks}
	defer tends(t, anew)()
	awaitNoDisks(t, anew)
	left(t, node, m)
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// TestAnISCSIDiskAsADevice is not touched, and after a reboot it is looked for again: its name may be another disk's.
func TestAnISCSIDiskAsADevice(t *testing.T) {
	node, c, m := newISCSI(t)
	c.volumes["pv"].Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	pod := claimPod("u1")
	pod.Spec.Containers[0].VolumeMounts = nil
	pod.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	path := set(t, m, pod)
	if err := isDisk(path); err != nil {
		t.Errorf("the pod has no device: %v", err)
	}
	got, err := m.ContainerDevices(pod, &pod.Spec.Containers[0])
	if err != nil || len(got) != 1 || got[0].HostPath != path || got[0].ContainerPath != "/dev/x" {
		t.Errorf("%v, %v", got, err)
	}
	if there, err := diskReady(path); err != nil || !there {
		t.Errorf("not ready: %v", err)
	}
	all, err := allDisks(m.Dirs, iscsiPlugin)
	if err != nil || len(all) != 1 {
		t.Fatalf("records %v, %v", all, err)
	}
	r, err := all[0].read()
	must(t, err)
	r.Boot = "another"
	must(t, all[0].write(r))
	if there, err := diskReady(path); err != nil || there {
		t.Errorf("ready after a reboot: %v", err)
	}
	set(t, m, pod)
	if there, err := diskReady(path); err != nil || !there {
		t.Errorf("not ready after the second time: %v", err)
	}
	clear(t, m, "u1")
	left(t, node, m)
}

// TestSeveralPortals: one that does not answer does no harm while another one does.
func TestSeveralPortals(t *testing.T) {
	node, _, m := newISCSI(t, func(s *v1.ISCSIPersistentVolumeSource) { s.Portals = []string{"10.0.0.2:3260", "10.0.0.1:3260"} })
	node.Refuse = func(args string) error {
		if strings.Contains(args, portal) && strings.Contains(args, "--login") {
			return fakeiscsi.Exit(8)
		}
		return nil
	}
	set(t, m, claimPod("u1"))
	if got := node.Sessions(); !slices.Equal(got, []string{"10.0.0.2:3260"}) {
		t.Errorf("sessions %q", got)
	}
	node.Refuse = nil
	clear(t, m, "u1")
	left(t, node, m)
}

// TestWhatIsWrongWithADisk is said in words, and leaves nothing behind.
func TestWhatIsWrongWithADisk(t *testing.T) {
	for name, tc := range map[string]struct {
		source v1.PersistentVolumeSource
		want   string
	}{
		"no such target": {onISCSI(func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:other" }),
			`MountVolume.WaitForAttach failed for volume "pv" : failed to get any path for iscsi disk, last err seen: portal 10.0.0.1:3260: iscsiadm: exit status 24: iscsiadm: Could not login to target`},
		"a path": {onISCSI(func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "../../etc" }), `"../../etc:3260" cannot be part of an iSCSI target`},
		"an option": {onISCSI(func(s *v1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = "--version" }),
			`"--version" cannot be part of an iSCSI target`},
		"no file system of a disk": {onISCSI(func(s *v1.ISCSIPersistentVolumeSource) { s.FSType = "fuse.sshfs" }),
			`MountVolume.MountDevice failed for volume "pv" : fsType "fuse.sshfs" is no file system of a disk`},
		"no adapter": {v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{WWIDs: []string{"3600"}}},
			`MountVolume.WaitForAttach failed for volume "pv" : no fc disk found: this node has no Fibre Channel adapter`},
		"a pattern": {v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{WWIDs: []string{"*"}}}, `"*" is no name of a Fibre Channel port or disk`},
	} {
		t.Run(name, func(t *testing.T) {
			node, c, m := newISCSI(t)
			c.volumes["pv"].Spec.PersistentVolumeSource = tc.source
			if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			clear(t, m, "u1")
			left(t, node, m)
		})
	}
}

func TestANodeWithoutOpenISCSI(t *testing.T) {
	node, _, m := newISCSI(t)
	node.Refuse = func(string) error { return &os.PathError{Op: "find", Path: "iscsiadm", Err: os.ErrNotExist} }
	_, err := m.Mount(t.Context(), claimPod("u1"), "v")
	if err == nil || !strings.Contains(err.Error(), "this node has no iSCSI volumes: it has no iscsiadm (in Debian's package open-iscsi") {
		t.Errorf("%v", err)
	}
}

// TestCHAP: the secret's settings are given to open-iscsi, and no other secret's.
func TestCHAP(t *testing.T) {
	node, c, m := newISCSI(t, func(s *v1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.SecretRef = true, &v1.SecretReference{Name: "chap"}
		s.InitiatorName = new("iqn.2001-04.com.example:node")
	})
	client := fake.NewClientset(
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "chap"}, Type: "kubernetes.io/iscsi-chap", Data: map[string][]byte{
			"node.session.auth.username": []byte("me"), "node.session.auth.password": []byte("secret"), "discovery.sendtargets.auth.username": []byte("x"),
		}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "opaque"}},
	)
	m.CSI, m.Attached = &CSI{Client: client}, nil
	set(t, m, claimPod("u1"))
	record := iqn + " " + portal + " " + portal + ":pv"
	for key, want := range map[string]string{
		"node.session.auth.authmethod": "CHAP", "node.session.auth.username": "me", "node.session.auth.password": "secret",
		"discovery.sendtargets.auth.username": "",
	} {
		if got := node.Setting(record, key); got != want {
			t.Errorf("%s is %q", key, got)
		}
	}
	if got := node.Setting("iface "+portal+":pv", "iface.initiatorname"); got != "iqn.2001-04.com.example:node" {
		t.Errorf("the node calls itself %q", got)
	}
	clear(t, m, "u1")
	left(t, node, m)
	c.volumes["pv"].Spec.ISCSI.SecretRef.Name = "opaque"
	if _, err := m.Mount(t.Context(), claimPod("u1"), "v"); err == nil || !strings.Contains(err.Error(), "cannot get secret of type kubernetes.io/iscsi-chap") {
		t.Errorf("another secret: %v", err)
	}
	clear(t, m, "u1")
}

// TestADiskOfOthersIsNotGiven to a pod that names it without being one that may have it: the session is there.
func TestADiskOfOthersIsNotGiven(t *testing.T) {
	node, _, m := newISCSI(t, func(s *v1.ISCSIPersistentVolumeSource) {
		s.SessionCHAPAuth, s.SecretRef = true, &v1.SecretReference{Name: "chap"}
	})
	secret := func(namespace, password string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chap"}, Type: "kubernetes.io/iscsi-chap",
			Data: map[string][]byte{"node.session.auth.password": []byte(password)}}
	}
	m.CSI, m.Attached = &CSI{Client: fake.NewClientset(secret("ns", "right"), secret("copies", "right"), secret("others", "guess"))}, nil
	set(t, m, claimPod("u1"))
	own := func(uid types.UID, namespace string, lun int32) *v1.Pod {
		src := &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: iqn, Lun: lun, ISCSIInterface: "default"}
		if namespace != "" {
			src.SessionCHAPAuth, src.SecretRef = true, &v1.LocalObjectReference{Name: "chap"}
		}
		pod := podWith(v1.VolumeSource{ISCSI: src})
		pod.UID, pod.Namespace = uid, namespace
		return pod
	}
	for lun := int32(1); lun <= 2; lun++ {
		for _, namespace := range []string{"", "others"} {
			pod := own("thief", namespace, lun)
			if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "with other credentials") {
				t.Errorf("LUN %d, with the secret of %q: %v", lun, namespace, err)
			}
			clear(t, m, "thief")
		}
	}
	set(t, m, own("friend", "copies", 1))
	clear(t, m, "friend")
	clear(t, m, "u1")

	// One that was not let in keeps nobody else out.
	node.Refuse = func(args string) error {
		if strings.Contains(args, "--login") && node.Setting(iqn+" "+portal+" default", "node.session.auth.password") != "right" {
			return fakeiscsi.Exit(24)
		}
		return nil
	}
	if _, err := m.Mount(t.Context(), own("thief", "others", 1), "v"); err == nil || !strings.Contains(err.Error(), "exit status 24") {
		t.Errorf("a wrong password: %v", err)
	}
	set(t, m, claimPod("u1"))
	set(t, m, own("friend", "copies", 2))
	clear(t, m, "friend")
	clear(t, m, "thief")
	clear(t, m, "u1")
	left(t, node, m)
}

// TestADiskOfTheMachineIsNotGiven to a pod that describes it, nor to a claim while the machine has it mounted.
func TestADiskOfTheMachineIsNotGiven(t *testing.T) {
	node, _, m := newISCSI(t)
	node.Login(t, iqn, portal)
	pod := podWith(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: iqn, Lun: 1, ISCSIInterface: "default"}})
	if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "is the machine's own: only a PersistentVolume may use it") {
		t.Errorf("%v", err)
	}
	clear(t, m, pod.UID)
	set(t, m, claimPod("u1"))
	clear(t, m, "u1")
	machines := t.TempDir()
	run(t, "mount", filepath.Join(node.Root, "dev", node.Disks()[0]), machines)
	if _, err := m.Mount(t.Context(), claimPod("u2"), "v"); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("%v", err)
	}
	run(t, "umount", machines)
	clear(t, m, "u2")
	nothingLeft(t, m)
}

// TestADiskIsNotMountedBeforeItIsAttached, and the node says that it uses it until it has given it up.
func TestADiskIsNotMountedBeforeItIsAttached(t *testing.T) {
	node, _, m := newISCSI(t)
	name := v1.UniqueVolumeName("kubernetes.io/iscsi/10.0.0.1:" + iqn + ":1")
	reports := make(chan []v1.UniqueVolumeName, 10)
	m.Attached = &Attached{Report: func() {
		used, err := VolumesInUse(m.Dirs)
		if err != nil {
			t.Error(err)
		}
		reports <- used
	}}
	m.Attached.Written = func(context.Context) (string, error) { m.Attached.Report(); return "", nil }
	ended := make(chan error, 1)
	go func() {
		_, err := m.Mount(t.Context(), claimPod("u1"), "v")
		ended <- err
	}()
	if used := <-reports; !slices.Equal(used, []v1.UniqueVolumeName{name}) {
		t.Errorf("in use: %q", used)
	}
	if got := node.Sessions(); len(got) > 0 {
		t.Errorf("logged in before anybody has said that the node may: %q", got)
	}
	m.Attached.NodeSeen(&v1.Node{Status: v1.NodeStatus{
		VolumesInUse: []v1.UniqueVolumeName{name}, VolumesAttached: []v1.AttachedVolume{{Name: name}},
	}})
	must(t, <-ended)
	clear(t, m, "u1")
	if used := <-reports; len(used) > 0 {
		t.Errorf("in use: %q", used)
	}
	left(t, node, m)
}

// TestReadOnlyDisks: one that is mounted read-only for a pod is not given to one that writes, and nothing is put on it.
func TestReadOnlyDisks(t *testing.T) {
	node, _, m := newISCSI(t)
	readOnly := func(uid types.UID) *v1.Pod {
		pod := claimPod(uid)
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
		return pod
	}
	if _, err := m.Mount(t.Context(), readOnly("u1"), "v"); err == nil || !strings.Contains(err.Error(), "cannot mount unformatted disk") {
		t.Errorf("a disk with nothing on it: %v", err)
	}
	clear(t, m, "u1")
	writer := set(t, m, claimPod("u2"))
	reader := set(t, m, readOnly("u3"))
	if err := os.WriteFile(filepath.Join(reader, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("wrote to a volume that is read-only: %v", err)
	}
	writeFile(t, filepath.Join(writer, "file"), "x")
	clear(t, m, "u2")
	clear(t, m, "u3")
	set(t, m, readOnly("u4"))
	if _, err := m.Mount(t.Context(), claimPod("u5"), "v"); err == nil || !strings.Contains(err.Error(), "mounted read-only on this node") {
		t.Errorf("a writer beside a reader: %v", err)
	}
	clear(t, m, "u5")
	clear(t, m, "u4")
	left(t, node, m)
}

// TestALocalDiskWithAFileSystem is mounted, once for all pods, and its files are given to the pod's group.
func TestALocalDiskWithAFileSystem(t *testing.T) {
	device := testdisks.Loop(t, 16)
	c, m := newClaims(t, localAt(device))
	c.volumes["pv"].Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")}
	pod := claimPod("u1")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
	a := set(t, m, pod)
	info, err := os.Stat(a)
	must(t, err)
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Gid != 1234 {
		t.Errorf("the volume is not the group's: %+v", info.Sys())
	}
	places, err := Places(m.Dirs, "u1")
	if err != nil || len(places) != 1 || places[0].Path != a || places[0].Size != 0 || !places[0].Foreign {
		t.Errorf("%+v, %v: it takes nothing of the node's own disk", places, err)
	}
	writeFile(t, filepath.Join(a, "file"), "hello")
	wantHello(t, filepath.Join(set(t, m, claimPod("u2")), "file"))
	clear(t, m, "u1")
	clear(t, m, "u2")
	nothingLeft(t, m)
	if err := (disks.Node{}).Unused(t.Context(), filepath.Base(device)); err != nil {
		t.Errorf("after all pods: %v", err)
	}
}

// TestAFibreChannelDisk is found by the links that udev makes, whichever port it is seen by.
func TestAFibreChannelDisk(t *testing.T) {
	node, c, m := newISCSI(t)
	lun := int32(3)
	c.volumes["pv"].Spec.PersistentVolumeSource = v1.PersistentVolumeSource{FC: &v1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd0", "50060e801049cfd1"}, Lun: &lun, FSType: "ext4"}}
	device := testdisks.Loop(t, 16)
	links := filepath.Join(node.Root, "dev/disk/by-path")
	must(t, os.MkdirAll(links, 0o755))
	must(t, os.Symlink(device, filepath.Join(node.Root, "dev", filepath.Base(device))))
	must(t, os.Symlink(device, filepath.Join(links, "pci-0000:05:00.0-fc-0x50060e801049cfd1-lun-3")))
	must(t, os.Symlink("/dev/null", filepath.Join(links, "pci-0000:05:00.0-fc-0x50060e801049cfd1-lun-31")))
	path := set(t, m, claimPod("u1"))
	writeFile(t, filepath.Join(path, "file"), "hello")
	clear(t, m, "u1")
	nothingLeft(t, m)
}

// TestKilledBetweenTwoStepsOfADisk: whatever was done when the process was killed, the next one goes on, or undoes it.
func TestKilledBetweenTwoStepsOfADisk(t *testing.T) {
	if doc := os.Getenv(childEnv); doc != "" {
		var c child
		must(t, json.Unmarshal([]byte(doc), &c))
		_, m := newClaims(t, localAt(c.Socket))
		m.Dirs = criconfig.Dirs{Root: c.Root}
		if c.Do == "clear" {
			clear(t, m, "u1")
			return
		}
		set(t, m, claimPod("u1"))
		return
	}
	for _, step := range []string{
		"disk-placed", "disk-entered", "disk-found", "disk-mounted", "disk-unbound", "disk-unmounted", "disk-left",
	} {
		for _, next := range []string{"mount", "clear"} {
			t.Run(step+", then "+next, func(t *testing.T) {
				device := testdisks.Loop(t, 16)
				_, m := newClaims(t, localAt(device))
				do := "mount"
				if slices.Contains([]string{"disk-unbound", "disk-unmounted", "disk-left"}, step) {
					do = "clear"
					set(t, m, claimPod("u1"))
				}
				kills.At(t, step, childEnv, child{m.Dirs.Root, device, do}, "-test.run=^TestKilledBetweenTwoStepsOfADisk$")
				if next == "mount" {
					if path := set(t, m, claimPod("u1")); !mounted(t, path) {
						t.Error("the volume is not there")
					}
				}
				clear(t, m, "u1")
				defer tends(t, m)()
				awaitNoDisks(t, m)
				nothingLeft(t, m)
			})
		}
	}
}

// TestManyPodsOfOneTarget come and go at the same time: no pod loses its disk, and nothing is left.
func TestManyPodsOfOneTarget(t *testing.T) {
	node, c, m := newISCSI(t)
	other := second(c)
	defer tends(t, m)()
	ended := make(chan error)
	one := func(pod *v1.Pod) error {
		for range 5 {
			if _, err := m.Mount(t.Context(), pod, "v"); err != nil {
				return err
			}
			path, err := m.Path(pod, &pod.Spec.Volumes[0])
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(path, string(pod.UID)), nil, 0o600); err != nil {
				return fmt.Errorf("under a running pod: %w", err)
			}
			if err := m.Clear(context.WithoutCancel(t.Context()), pod.UID); err != nil {
				return err
			}
		}
		return nil
	}
	const pods = 8
	for i := range pods {
		pod := claimPod(types.UID(fmt.Sprintf("u%d", i)))
		if i%2 == 1 {
			pod = other.DeepCopy()
			pod.UID = types.UID(fmt.Sprintf("s%d", i))
		}
		go func() { ended <- one(pod) }()
	}
	for range pods {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	awaitNoDisks(t, m) // one can be in use for a moment: another pod's mkfs
	left(t, node, m)
}
