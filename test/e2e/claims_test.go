package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPodWithAClaimIsScheduled: the scheduler chooses the volume, the controller completes the binding, and the pod's
// node says what is wrong with the volume, until that is put right.
func TestAPodWithAClaimIsScheduled(t *testing.T) {
	c := startCluster(t)
	made := filepath.Join(t.TempDir(), "made")
	c.must("kubectl", "create", "-f", c.file(strings.Replace(`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: by-hand}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: v}, spec: {storageClassName: by-hand, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: MADE, type: Directory},
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: late}, spec: {storageClassName: by-hand, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
`, "MADE", made, 1)))
	c.until("nobody says what the claim waits for", func() bool {
		return strings.Contains(c.must("kubectl", "get", "events"), "waiting for first consumer to be created before binding")
	})
	if out := c.must("explain", "pvc/late"); !strings.Contains(out, "its first consumer") {
		t.Errorf("explain says:\n%s", out)
	}
	c.must("kubectl", "create", "-f", c.file(`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {terminationGracePeriodSeconds: 0, volumes: [{name: data, persistentVolumeClaim: {claimName: late}}],
  containers: [{name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}]}}
`))
	c.must("kubectl", "wait", "pvc/late", "--for", "jsonpath={.status.phase}=Bound", "--timeout", fmt.Sprint(patience))
	c.must("kubectl", "wait", "pod/p", "--for", "condition=PodScheduled", "--timeout", fmt.Sprint(patience))
	c.until("explain does not know why the pod waits", func() bool {
		out := c.must("explain", "pod/p")
		return strings.Contains(out, `MountVolume.SetUp failed for volume "v" : hostPath type check failed: `+made+" is not a directory")
	})
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	c.await("p", "ready", ready)
	if out := c.must("explain", "pvc/late"); !strings.Contains(out, "It is bound to volume v of 1Gi.") {
		t.Errorf("explain says:\n%s", out)
	}
	// The claim outlives the pod, the volume the claim.
	c.must("kubectl", "delete", "pvc/late", "--wait=false")
	c.must("kubectl", "delete", "pod/p", "--wait=false")
	c.must("kubectl", "wait", "pv/v", "--for", "jsonpath={.status.phase}=Released", "--timeout", fmt.Sprint(patience))
}
