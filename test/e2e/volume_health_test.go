package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/fakecsi"
	"wherry.dev/test/images"
)

// TestTheHealthOfVolumes: what a CSI driver says is wrong with a pod's volume, and behind the driver, stands in the
// statuses of the pod and the CSINode until the driver says otherwise, whatever becomes of the daemon.
func TestTheHealthOfVolumes(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--apiserver-arg=feature-gates=CSIVolumeHealth=true", "--kubelet-arg=feature-gates=CSIVolumeHealth=true",
		"--kubelet-arg=volume-stats-agg-period=200ms")
	c.up()
	d := fakecsi.New(t, "health.example.com")
	d.Serve(t, filepath.Join(c.data, "kubelet", "plugins_registry", "health.sock"))
	c.kubectl("create", "-f", c.file(`{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: health.example.com}, spec: {attachRequired: false}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv}, spec: {storageClassName: "", capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce],
  csi: {driver: health.example.com, volumeHandle: one}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: claim}, spec: {storageClassName: "", volumeName: pv, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
`+keepsData("p", "persistentVolumeClaim: {claimName: claim}", "")))
	c.await("p", "ready", ready)

	d.Ails("one", &csipb.VolumeHealth_VolumeHealthEntry{Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "PathLost", Message: "one of two"})
	d.StorageAils(&csipb.NodeGetStorageHealthResponse_StorageBackendHealth{Status: csipb.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "Cut"})
	ails := func(p *v1.Pod) bool {
		h := p.Status.VolumeHealth
		return len(h) == 1 && h[0].Name == "data" && len(h[0].HealthConditions) == 1 &&
			h[0].HealthConditions[0] == v1.VolumeHealthCondition{Status: v1.VolumeHealthDegraded, Reason: "PathLost", Message: "one of two"}
	}
	since := c.await("p", "told of its volume", ails).Status.VolumeHealth[0].LastTransitionTime
	if text := c.must("explain", "pod/p"); !strings.Contains(text, "volume data: its driver says that on this node it is Degraded (PathLost): one of two") {
		t.Errorf("explain says\n%s", text)
	}
	behind := func() string {
		node, err := c.client.StorageV1().CSINodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(node.Items) != 1 || len(node.Items[0].Status.StorageHealth) != 1 {
			return fmt.Sprint(err)
		}
		h := node.Items[0].Status.StorageHealth[0]
		return fmt.Sprint(h.Name, " ", h.HealthConditions[0].Status, " ", h.HealthConditions[0].Reason)
	}
	const cut = "health.example.com StorageUnreachable Cut"
	c.until("the CSINode does not tell", func() bool { return behind() == cut })

	c.killDaemon()
	d.Before("NodeGetVolumeHealth", fakecsi.Hang)
	c.up()
	c.until("the driver is not asked again", func() bool {
		calls := d.Calls()
		return calls[len(calls)-1] == "NodeGetVolumeHealth"
	})
	if p := c.get("p"); !ails(p) || !p.Status.VolumeHealth[0].LastTransitionTime.Equal(&since) {
		t.Errorf("after a restart: %+v", p.Status.VolumeHealth)
	}
	if got := behind(); got != cut {
		t.Errorf("after a restart the CSINode says %s", got)
	}
	d.Before("NodeGetVolumeHealth", nil)
	d.Ails("one")
	d.StorageAils()
	c.killDaemon() // the driver still hangs in the call of before
	c.up()
	c.await("p", "told that all is well", func(p *v1.Pod) bool { return len(p.Status.VolumeHealth) == 0 })
	c.until("the CSINode still tells", func() bool { return behind() == "<nil>" })
	c.delete("p")
}
