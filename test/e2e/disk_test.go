package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/images"
)

// onDisk is a pod that runs a script of the shell, with an empty folder at /data.
func onDisk(name, text string) *v1.Pod {
	return busybox(name, func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.Command = []string{"sh", "-c", text}
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	})
}

func evicted(p *v1.Pod) bool {
	return p != nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted"
}

// A pod that fills the disk is the only one that it costs: it is evicted with a reason,
// what it wrote is given back, and neither the API nor another pod notices.
func TestPodThatFillsTheDiskIsEvictedAlone(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("600m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("neighbour"))
	neighbour := c.await("neighbour", "ready", ready)
	pid := c.pid()
	for name, text := range map[string]string{
		"volume": "while true; do cat /dev/zero >> /data/hog; done",
		"layer":  "while true; do cat /dev/zero >> /hog; done",
		"modest": "dd if=/dev/zero of=/data/some bs=1M count=20; " + loop,
	} {
		c.create(onDisk(name, text))
		if name == "modest" {
			c.await(name, "running", phase(v1.PodRunning))
			continue
		}
		p := c.await(name, "evicted", evicted)
		if m := p.Status.Message; !strings.HasPrefix(m, "The node was low on resource: ephemeral-storage. Threshold quantity: ") {
			t.Errorf("%s: %s", name, m)
		}
		c.awaitEvent(name, "Evicted")
		c.await(name, "told of the disruption", func(p *v1.Pod) bool {
			for _, cond := range p.Status.Conditions {
				if cond.Type == v1.DisruptionTarget && cond.Reason == v1.PodReasonTerminationByKubelet {
					return true
				}
			}
			return false
		})
		c.awaitPressure(v1.ConditionFalse)
		if err := c.tryCreate(); err != nil {
			t.Errorf("after %s was evicted: %v", name, err)
		}
	}
	now := c.get("neighbour")
	if !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID || c.pid() != pid {
		t.Errorf("the neighbour: %s", describe(now))
	}
	if p := c.get("modest"); p.Status.Phase != v1.PodRunning {
		t.Errorf("one that takes little: %s", describe(p))
	}
	c.create(busybox("after"))
	c.await("after", "ready", ready)
}

// awaitPressure waits for the node's condition DiskPressure.
func (c *cluster) awaitPressure(want v1.ConditionStatus) {
	c.t.Helper()
	pressed := func() bool {
		n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), c.flags[1], metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == v1.NodeDiskPressure {
				return cond.Status == want
			}
		}
		return false
	}
	for deadline := time.Now().Add(patience); !pressed(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("DiskPressure is not %s", want)
		}
	}
}

// A container that floods its log fills no disk: it has the files that it may have, and
// not many times that for the ten seconds until somebody looks.
func TestFloodOfALogIsLimitedAsItIsWritten(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("600m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("neighbour"))
	c.await("neighbour", "ready", ready)
	p := c.create(onDisk("flood", "while true; do yes 'a line of a log that says nothing new to anybody'; done"))
	c.await("flood", "running", phase(v1.PodRunning))
	logs := filepath.Join(c.data, "log", "pods", "default_flood_"+string(p.UID), "main")
	var most int64
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var sum int64
		files, err := filepath.Glob(filepath.Join(logs, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				sum += info.Size()
			}
		}
		most = max(most, sum)
	}
	t.Logf("its logs took %d MiB at the most", most>>20)
	if limit := int64(300 << 20); most < 20<<20 || most > limit { // five of 10 MiB, and what a moment brings
		t.Errorf("the logs took %d MiB at the most", most>>20)
	}
	if p := c.get("flood"); p.Status.Phase != v1.PodRunning {
		t.Errorf("the flood is %s", describe(p))
	}
	if got := c.kubectl("logs", "flood", "--tail=1"); !strings.HasPrefix(got, "a line of a log") {
		t.Errorf("its last line is %q", got)
	}
}
