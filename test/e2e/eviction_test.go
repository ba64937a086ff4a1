package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	registryv1 "github.com/google/go-containerregistry/pkg/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/kubelet/nodestatus"
	"wherry.dev/test/images"
)

// memoryNode starts a node whose pods together have little memory: what they run short of is theirs, and the
// machine's is not touched.
func memoryNode(t *testing.T, pods, least int64, flags ...string) *parts {
	t.Helper()
	c := newCluster(t)
	p := &parts{cluster: c, dir: filepath.Dir(c.data), apiPort: c.flags[3]}
	p.runtime()
	p.apiserver()
	machine, _, err := nodestatus.Capacity(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.kubelet(append([]string{
		fmt.Sprintf("--kube-reserved=memory=%d", machine-pods), fmt.Sprintf("--eviction-hard=allocatableMemory.available<%d", least),
		"--eviction-pressure-transition-period=5s",
	}, flags...)...)
	p.controllers()
	return p
}

// onNode puts a pod onto the node without a scheduler.
func onNode(p *v1.Pod) { p.Spec.NodeName = "alone" }

func (p *parts) pressed(t v1.NodeConditionType) bool {
	n, err := p.client.CoreV1().Nodes().Get(p.t.Context(), "alone", metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// A pod that uses up the memory is evicted with a reason, and alone; meanwhile the node takes no pods that
// have asked for none. It does not matter whether the pod holds the memory itself or in files.
func TestPodThatUsesUpTheMemoryIsEvictedAlone(t *testing.T) {
	needsOwnRuntime(t)
	p := memoryNode(t, 800<<20, 600<<20)
	asks := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("50Mi")}
	}
	p.create(busybox("neighbour", onNode, asks))
	neighbour := p.await("neighbour", "ready", ready)
	inFiles := onDisk("files", "dd if=/dev/zero of=/data/hog bs=1M count=300; "+loop, onNode)
	inFiles.Spec.Volumes[len(inFiles.Spec.Volumes)-1].EmptyDir.Medium = v1.StorageMediumMemory
	for _, hog := range []*v1.Pod{busybox("process", onNode, script("(head -c 250000000 /dev/zero; sleep 1000) | tail -c 250000000 > /dev/null")), inFiles} {
		p.create(hog)
		got := p.await(hog.Name, "evicted", evicted)
		m := got.Status.Message
		if !strings.HasPrefix(m, "The node was low on resource: memory. Threshold quantity: 600Mi, available: ") || !strings.Contains(m, "has larger consumption of memory. ") {
			t.Errorf("%s: %s", hog.Name, m)
		}
		p.awaitEvent(hog.Name, "Evicted")
		p.until("the node is under pressure", func() bool { return p.pressed(v1.NodeMemoryPressure) })
		p.create(busybox("refused-"+hog.Name, onNode))
		if got := p.await("refused-"+hog.Name, "refused", evicted); got.Status.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
			t.Errorf("%q", got.Status.Message)
		}
		p.create(busybox("asks-"+hog.Name, onNode, asks))
		p.await("asks-"+hog.Name, "ready", ready)
		p.until("the pressure is over", func() bool { return !p.pressed(v1.NodeMemoryPressure) })
		p.create(busybox("after-"+hog.Name, onNode))
		p.await("after-"+hog.Name, "ready", ready)
	}
	if now := p.get("neighbour"); !ready(now) || now.Status.ContainerStatuses[0].ContainerID != neighbour.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the neighbour: %s", describe(now))
	}
}

// Pods that use more of the disk than their own limits allow are evicted, long before the disk is full; a
// neighbour that keeps to its limits is not.
func TestStorageLimits(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	limit := func(q string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(q)}
		}
	}
	sized := func(q string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Volumes[len(p.Spec.Volumes)-1].EmptyDir.SizeLimit = new(resource.MustParse(q))
		}
	}
	modest := onDisk("modest", "dd if=/dev/zero of=/data/some bs=1M count=3; "+loop, limit("50Mi"))
	sized("5Mi")(modest)
	c.create(modest)
	volume := onDisk("volume", "dd if=/dev/zero of=/data/hog bs=1M count=20; "+loop)
	sized("5Mi")(volume)
	crash := busybox("crash", script("dd if=/dev/zero of=/hog bs=1M count=20; exit 1"), limit("5Mi"))
	for _, p := range []*v1.Pod{volume, busybox("layer", script("dd if=/dev/zero of=/hog bs=1M count=20; "+loop), limit("5Mi")), crash} {
		c.create(p)
	}
	for name, want := range map[string]string{
		"volume": `Usage of EmptyDir volume "data" exceeds the limit "5Mi". `,
		"layer":  "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ",
		"crash":  "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ",
	} {
		if got := c.await(name, "evicted", evicted); got.Status.Message != want {
			t.Errorf("%s: %q, want %q", name, got.Status.Message, want)
		}
		c.awaitEvent(name, "Evicted")
	}
	if p := c.get("modest"); p.Status.Phase != v1.PodRunning {
		t.Errorf("one that keeps to its limits: %s", describe(p))
	}
}

// On a disk that is rather full images go that nobody uses, and no others: not those of pods, and not those
// that the node could not get back.
func TestUnusedImagesAreCollected(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.ext4Disk(900 << 20)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	archive := filepath.Join(t.TempDir(), "images.tar")
	for _, name := range []string{"unused:1", "used:1"} {
		root, err := images.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		root["only"] = images.File{Data: []byte(strings.Repeat(name, 1<<18))}
		img, err := images.New(registryv1.Config{}, root)
		if err == nil {
			err = images.Save(archive, img, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.must("image", "import", archive)
	}
	c.must("down")
	c.up() // what is there at its start is old enough
	c.create(busybox("user", func(p *v1.Pod) { p.Spec.Containers[0].Image = "used:1" }))
	c.await("user", "ready", ready)
	fill := filepath.Join(c.data, "fill")
	room := c.room()
	if err := errors.Join(os.WriteFile(fill, nil, 0o600), allocate(fill, int64(room.Free)-int64(room.Total)/5)); err != nil {
		t.Fatal(err)
	}
	c.until("the unused image is gone", func() bool { return !strings.Contains(c.must("image", "list"), "unused") })
	if out := c.must("image", "list"); !strings.Contains(out, "library/used") || !strings.Contains(out, "library/busybox") {
		t.Errorf("left: %s", out)
	}
	c.until("the node says that this is not enough", func() bool {
		return strings.Contains(c.kubectl("get", "events", "--field-selector", "reason=FreeDiskSpaceFailed"), "Failed to garbage collect required amount of images.")
	})
	if p := c.get("user"); !ready(p) {
		t.Errorf("the user of an image: %s", describe(p))
	}
	if out := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.get("user").Spec.NodeName+"/proxy/metrics"); !strings.Contains(out, `kubelet_image_garbage_collected_total{reason="space"} 1`) {
		t.Error("the metric does not count it")
	}
}
