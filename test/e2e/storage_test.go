package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/disks"
	"wherry.dev/test/images"
)

// keepsData is a pod with the volume, mounted at /data.
func keepsData(name, volume, more string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, %s volumes: [{name: data, %s}],
  containers: [{name: c, image: %q, command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}]}}
---
`, name, more, volume, firstImage)
}

// volumesOnDisk returns the directories of the volumes that the node has made.
func (c *cluster) volumesOnDisk() []string {
	c.t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.data, "volumes"))
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// untilNoVolume waits until the node has removed all the volumes that it has made.
func (c *cluster) untilNoVolume() {
	c.t.Helper()
	c.until("volumes are left", func() bool {
		list, err := c.client.CoreV1().PersistentVolumes().List(c.t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0 && len(c.volumesOnDisk()) == 0
	})
}

// A pod that writes more into its claim than it asked for is the one that goes when the disk runs short, although its end
// frees nothing: others used to be evicted in its place, as long as it filled what they gave back.
func TestAPodThatOverfillsItsClaimIsEvicted(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.ext4Disk(900 << 20)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.noteCalm()
	c.create(onDisk("neighbour", "dd if=/dev/zero of=/data/some bs=1M count=2; "+loop))
	neighbour := c.await("neighbour", "ready", ready)
	c.kubectl("create", "-f", c.file(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 20Mi}}}}`))
	c.create(onDisk("hog", "while true; do cat /dev/zero >> /data/hog; done", func(p *v1.Pod) {
		p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	}))
	hog := c.await("hog", "evicted", evicted)
	if m := hog.Status.Message; !strings.Contains(m, "Claim data was using ") || !strings.Contains(m, ", was given 20Mi, and keeps its data. ") {
		t.Error(m)
	}
	if got := c.volumesOnDisk(); len(got) != 1 {
		t.Errorf("volumes after the eviction: %v", got)
	}
	c.delete("hog")
	c.kubectl("delete", "pvc", "data", "--timeout", fmt.Sprint(patience))
	c.awaitRoomAgain("the claim")
	if now := c.get("neighbour"); !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the neighbour: %s", describe(now))
	}
}

// TestStorageOfAFreshNode: a claim that names no class gets a directory of the node. Its data outlives the pod, a killed
// node and one that was taken down; the claim can grow; nothing of it outlives the claim.
func TestStorageOfAFreshNode(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	c.kubectl("apply", "-f", example("storage.yaml"))
	c.kubectl("rollout", "status", "statefulset/notes", "--timeout", fmt.Sprint(patience))
	if got := len(c.volumesOnDisk()); got != 2 {
		t.Errorf("%d volumes", got)
	}
	for _, pod := range []string{"notes-0", "notes-1"} {
		c.exec(pod, "sh", "-c", "hostname > /notes/mine")
	}
	keeps := func(when string) {
		t.Helper()
		for _, pod := range []string{"notes-0", "notes-1"} {
			c.await(pod, "ready", ready)
			if got := c.exec(pod, "cat", "/notes/mine"); strings.TrimSpace(got) != pod {
				t.Errorf("%s: %s has %q", when, pod, got)
			}
		}
	}
	c.kubectl("delete", "pod", "notes-0")
	c.kubectl("rollout", "status", "statefulset/notes", "--timeout", fmt.Sprint(patience))
	keeps("after the pod was deleted")
	c.killDaemon()
	c.up()
	keeps("after a kill")
	c.must("down")
	c.up()
	keeps("after the node was down")

	c.kubectl("patch", "pvc", "notes-notes-0", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	for _, of := range []string{"{.status.capacity.storage}=20Mi", "{.status.allocatedResources.storage}=20Mi"} {
		c.kubectl("wait", "pvc/notes-notes-0", "--for=jsonpath="+of, "--timeout", fmt.Sprint(patience))
	}
	if got := c.kubectl("get", "pv", "-o", "jsonpath={.items[*].spec.capacity.storage}"); !strings.Contains(got, "20Mi") {
		t.Errorf("sizes of volumes: %s", got)
	}
	keeps("after it has grown")

	c.kubectl("delete", "-f", example("storage.yaml"), "--timeout", fmt.Sprint(patience))
	c.kubectl("delete", "pvc", "--all", "--timeout", fmt.Sprint(patience))
	c.untilNoVolume()

	// The class is the user's from now on.
	c.kubectl("delete", "storageclass", "local")
	c.must("down")
	c.up()
	if _, err := c.client.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the class that was deleted is back: %v", err)
	}
}

func (c *cluster) killDaemon() {
	c.t.Helper()
	pid := c.pid()
	if err := exec.CommandContext(c.t.Context(), "kill", "-9", fmt.Sprint(pid)).Run(); err != nil {
		c.t.Fatal(err)
	}
	waitGone(c.t, pid)
}

// TestKindsOfVolumesOfClaims: local and hostPath volumes by hand, an ephemeral one with a subPath and a group, and a
// device.
func TestKindsOfVolumesOfClaims(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	byHand := t.TempDir()
	for _, dir := range []string{"local", "host"} {
		if err := os.Mkdir(filepath.Join(byHand, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	here := `nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}}`
	claim := func(name, source, more string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %[1]s}, spec: {storageClassName: "", capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], %[2]s, %[3]s claimRef: {namespace: default, name: %[1]s}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %[1]s}, spec: {storageClassName: "", %[3]s volumeName: %[1]s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
`, name, source, more)
	}
	of := func(name string) string { return fmt.Sprintf("persistentVolumeClaim: {claimName: %s}", name) }
	c.kubectl("create", "-f", c.file(
		claim("local", here+fmt.Sprintf(", local: {path: %s}", filepath.Join(byHand, "local")), "")+
			claim("host", fmt.Sprintf("hostPath: {path: %s, type: Directory}", filepath.Join(byHand, "host")), "")+
			keepsData("one", of("local"), "securityContext: {fsGroup: 4242, runAsUser: 1000},")+
			keepsData("host", of("host"), "")+
			strings.Replace(keepsData("mine", `ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}}}`,
				"securityContext: {fsGroup: 4242, runAsUser: 1000},"), "mountPath: /data", "mountPath: /data, subPath: a/b", 1)))
	c.await("one", "ready", ready) // the first pod decides about the group of a volume that it shares
	c.kubectl("create", "-f", c.file(keepsData("two", of("local"), "")))
	for _, pod := range []string{"one", "two", "host", "mine"} {
		c.await(pod, "ready", ready)
		c.exec(pod, "sh", "-c", "hostname > /data/"+pod)
	}
	if got := c.exec("two", "stat", "-c", "%g", "/data/one"); strings.TrimSpace(got) != "4242" {
		t.Errorf("the group of a new file: %s", got)
	}
	for path, want := range map[string]string{"local/one": "one", "local/two": "two", "host/host": "host"} {
		if got, err := os.ReadFile(filepath.Join(byHand, path)); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	c.delete("one")
	if got := c.exec("two", "cat", "/data/one"); strings.TrimSpace(got) != "one" {
		t.Errorf("a pod that shared a volume took it along: %q", got)
	}
	// A pod that is removed by force while it has its volume leaves nothing either.
	c.kubectl("delete", "pod", "mine", "--force", "--grace-period=0")
	c.until("the ephemeral volume is left", func() bool { return len(c.volumesOnDisk()) == 0 })
}

// TestDeviceOfAClaim gives a container a loop device.
func TestDeviceOfAClaim(t *testing.T) {
	needsOwnRuntime(t)
	device := disks.Loop(t, 1)
	if err := os.WriteFile(device, []byte("first bytes of the disk\n"), 0); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t)
	c.kubectl("create", "-f", c.file(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk}, spec: {storageClassName: "", capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], volumeMode: Block,
  local: {path: %s}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: disk}, spec: {storageClassName: "", volumeName: disk, volumeMode: Block, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
`, device)+strings.Replace(keepsData("p", "persistentVolumeClaim: {claimName: disk}", ""),
		"volumeMounts: [{name: data, mountPath: /data}]", "volumeDevices: [{name: data, devicePath: /dev/disk}]", 1)))
	c.await("p", "ready", ready)
	if got := c.exec("p", "head", "-n", "1", "/dev/disk"); strings.TrimSpace(got) != "first bytes of the disk" {
		t.Errorf("it reads %q", got)
	}
	c.delete("p")
}

// TestDisksOfPods: what is on a disk is there for one pod after another, the group may use it, and nobody has it afterwards. A
// disk that cannot be had is said to be the node's until its pod is gone, and no longer.
func TestDisksOfPods(t *testing.T) {
	needsOwnRuntime(t)
	device := disks.Loop(t, 16)
	c := startCluster(t)
	c.kubectl("create", "-f", c.file(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk}, spec: {storageClassName: "", capacity: {storage: 10Mi}, accessModes: [ReadWriteOnce],
  local: {path: %s}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: disk}, spec: {storageClassName: "", volumeName: disk, accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}}
---
`, device)+keepsData("first", "persistentVolumeClaim: {claimName: disk}", "securityContext: {fsGroup: 4242, runAsUser: 1000},")+
		keepsData("far", `iscsi: {targetPortal: 127.0.0.1, iqn: "iqn.2001-04.com.example:nowhere", lun: 1}`, "")))
	c.await("first", "ready", ready)
	c.exec("first", "sh", "-c", "echo hello > /data/file")
	c.delete("first")
	c.kubectl("create", "-f", c.file(keepsData("second", "persistentVolumeClaim: {claimName: disk}", "")))
	c.await("second", "ready", ready)
	if got := c.exec("second", "cat", "/data/file"); got != "hello\n" {
		t.Errorf("it reads %q", got)
	}
	c.delete("second")
	c.until("the disk is still in use", func() bool {
		f, err := os.OpenFile(device, os.O_RDONLY|syscall.O_EXCL, 0)
		return err == nil && f.Close() == nil
	})

	c.awaitEvent("far", "SuccessfulAttachVolume")
	c.awaitEvent("far", "FailedMount")
	lists := func() string {
		return c.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.volumesAttached[*].name} {.items[0].status.volumesInUse[*]}")
	}
	const name = "kubernetes.io/iscsi/127.0.0.1:iqn.2001-04.com.example:nowhere:1"
	if got := lists(); got != name+" "+name {
		t.Errorf("the node has and uses %q", got)
	}
	c.delete("far")
	c.until("the node still has or uses a disk", func() bool { return strings.TrimSpace(lists()) == "" })
}
