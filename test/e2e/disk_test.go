package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/test/images"
)

// onDisk returns a pod that runs a shell script, with an empty folder at /data.
func onDisk(name, text string, opts ...func(*v1.Pod)) *v1.Pod {
	return busybox(name, append([]func(*v1.Pod){func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.Command = []string{"sh", "-c", text}
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	}}, opts...)...)
}

func evicted(p *v1.Pod) bool {
	return p != nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted"
}

// A pod that fills the disk harms only itself: it is evicted with a reason, what it wrote is freed,
// and neither the API nor another pod notices.
func TestPodThatFillsTheDiskIsEvictedAlone(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("600m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.noteCalm()
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
		c.awaitRoomAgain(name)
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

// A hog that does not run, or no longer runs for longer than it must, used to be left alone: the
// node stayed without room until somebody deleted it, and that could take its whole grace period.
func TestWhatFillsTheDiskInTheEndGivesItBack(t *testing.T) {
	needsOwnRuntime(t)
	const flood = "while true; do cat /dev/zero >> /hog; done"
	c := newCluster(t)
	c.ext4Disk(900 << 20)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.noteCalm()
	c.create(onDisk("neighbour", "dd if=/dev/zero of=/data/some bs=1M count=20; "+loop))
	neighbour := c.await("neighbour", "ready", ready)
	slow := func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3600) }

	// It ends while there is room, which is then taken by something else.
	layer := func(left uint64) string { return fmt.Sprintf("fallocate -l %d /hog", c.room().Free-left) }
	c.create(busybox("done", script(layer(240<<20)), policy(v1.RestartPolicyNever)))
	c.await("done", "succeeded", phase(v1.PodSucceeded))
	rest := filepath.Join(c.data, "rest")
	if err := errors.Join(os.WriteFile(rest, nil, 0o600), allocate(rest, int64(c.room().Free)-60<<20)); err != nil {
		t.Fatal(err)
	}
	c.awaitPressure(v1.ConditionTrue)
	c.awaitRoomAgain("done")
	if p := c.get("done"); p.Status.Phase != v1.PodSucceeded || p.Status.Reason != "" {
		t.Errorf("what has ended ended anew: %s", describe(p))
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}

	c.create(busybox("crashes", script(layer(60<<20)+"; exit 1")))
	c.await("crashes", "evicted", evicted)
	c.awaitRoomAgain("crashes")

	c.create(busybox("hosts", script("cat /dev/zero >> /etc/hosts; sleep 1000")))
	c.await("hosts", "evicted", evicted)
	c.awaitRoomAgain("hosts")

	c.create(busybox("hook", slow, func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", flood}}}}
	}))
	c.create(busybox("deaf", slow, script("trap '"+flood+"' TERM; touch /set; while true; do sleep 1; done"), whenSet))
	for _, name := range []string{"hook", "deaf"} {
		c.await(name, "ready", ready)
		c.delete(name)
		c.awaitRoomAgain(name)
	}
	if now := c.get("neighbour"); !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the neighbour: %s", describe(now))
	}
}

// Several pods may fill the disk at once, one of them from outside, by exec: each is evicted, and
// no other. If what fills the disk is not a pod's to give back, no pod that holds next to nothing
// is evicted.
func TestHogsSideBySide(t *testing.T) {
	needsOwnRuntime(t)
	const flood = "while true; do cat /dev/zero >> %s; done"
	c := newCluster(t)
	c.ext4Disk(900 << 20)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.noteCalm()
	c.create(onDisk("neighbour", "dd if=/dev/zero of=/data/some bs=1M count=2; "+loop))
	c.create(busybox("entered"))
	neighbour := c.await("neighbour", "ready", ready)
	c.await("entered", "ready", ready)
	pid := c.pid()

	c.create(onDisk("volume", fmt.Sprintf(flood, "/data/hog")))
	c.create(onDisk("layer", fmt.Sprintf(flood, "/hog")))
	c.await("volume", "running", phase(v1.PodRunning))
	entered := make(chan error, 1)
	var over atomic.Bool
	go func() {
		for {
			_, err := c.try("kubectl", "exec", "entered", "--", "sh", "-c", fmt.Sprintf(flood, "/hog"))
			if err == nil || over.Load() || t.Context().Err() != nil { // the full disk may keep it out at first
				entered <- err
				return
			}
		}
	}()
	for _, name := range []string{"volume", "layer", "entered"} {
		c.await(name, "evicted", evicted)
	}
	over.Store(true)
	if err := <-entered; err == nil {
		t.Error("the exec ended well")
	}
	c.awaitRoomAgain("the hogs")

	folder := filepath.Join(c.data, "folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	c.create(onDisk("host", fmt.Sprintf(flood, "/data/hog"), func(p *v1.Pod) {
		p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder}}
	}))
	c.await("host", "running", phase(v1.PodRunning))
	c.awaitPressure(v1.ConditionTrue)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if p := c.get("host"); p.Status.Phase != v1.PodRunning {
			t.Fatalf("a pod went whose end gives nothing back: %s", describe(p))
		}
	}
	c.until("the disk is not full", func() bool { return c.tryCreate() != nil })
	c.wantFull()
	c.delete("host")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	c.awaitRoomAgain("the folder of the host")
	if now := c.get("neighbour"); !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID || c.pid() != pid {
		t.Errorf("the neighbour: %s", describe(now))
	}
}

// allocate reserves blocks for so many bytes of a file.
func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
}

// noteCalm starts to watch for disk shortages; see awaitRoomAgain.
func (c *cluster) noteCalm() { c.calm = c.pressure().LastTransitionTime }

// awaitRoomAgain waits until a shortage after the last one noted is over, the API accepts new
// objects, and the node new pods. The pod reports an eviction before the node does.
func (c *cluster) awaitRoomAgain(after string) {
	c.t.Helper()
	c.until("after "+after+" DiskPressure does not come and go", func() bool {
		now := c.pressure()
		if now.Status != v1.ConditionFalse || now.LastTransitionTime.Equal(&c.calm) {
			return false
		}
		c.calm = now.LastTransitionTime
		return true
	})
	for deadline := time.Now().Add(patience); c.tryCreate() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("after %s: %v", after, c.tryCreate())
		}
	}
}

// awaitPressure waits for the node's condition DiskPressure.
func (c *cluster) awaitPressure(want v1.ConditionStatus) {
	c.t.Helper()
	c.until("DiskPressure is not "+string(want), func() bool { return c.pressure().Status == want })
}

// pressure returns the node's condition DiskPressure, empty while the API does not answer.
func (c *cluster) pressure() v1.NodeCondition {
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), c.flags[1], metav1.GetOptions{})
	if err == nil {
		for _, cond := range n.Status.Conditions {
			if cond.Type == v1.NodeDiskPressure {
				return cond
			}
		}
	}
	return v1.NodeCondition{}
}

// A container that floods its log does not fill the disk: it has the files that it may have, rather
// than many times that for the ten seconds until the next check.
func TestFloodOfALogIsLimitedAsItIsWritten(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("600m")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	c.create(busybox("neighbour"))
	c.await("neighbour", "ready", ready)
	const line = "a line of a log that says nothing new to anybody"
	// No more than 25 MiB a second reach the log: a busy node may be seconds late.
	p := c.create(onDisk("flood", "while true; do yes '"+line+"' | head -n 20000; sleep 0.08; done"))
	c.await("flood", "running", phase(v1.PodRunning))
	logs := filepath.Join(c.data, "log", "pods", "default_flood_"+string(p.UID), "main")
	var most int64
	const least, limit = 20 << 20, 300 << 20 // the limit: five of 10 MiB, and what comes in a moment
	began := time.Now()
	for time.Since(began) < 20*time.Second || most < least && time.Since(began) < patience {
		time.Sleep(50 * time.Millisecond)
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
	if most < least || most > limit {
		t.Errorf("the logs took %d MiB at the most", most>>20)
	}
	if p := c.get("flood"); p.Status.Phase != v1.PodRunning {
		t.Errorf("the flood is %s", describe(p))
	}
	var last string
	c.until("its log has no last line", func() bool { // it has none yet if a file has just begun
		last = c.kubectl("logs", "flood", "--tail=1")
		return last != ""
	})
	if !strings.Contains(line+"\n", last) { // only part of it may have been written
		t.Errorf("its last line is %q", last)
	}
}
