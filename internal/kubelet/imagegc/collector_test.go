package imagegc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

const mi = 1 << 20

// node is a made-up node: a disk of 1000 MiB, of which each image takes what its size says.
type node struct {
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
	pods       []*podworker.Snapshot
	taken      uint64 // by others
	removed    []string
	forgotten  []string
	events     []string
	refuse     map[string]bool
	broken     error
	looks      int
}

func (n *node) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return n.containers, n.broken
}

func (n *node) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	n.looks++
	return slices.Clone(n.images), nil
}

func (n *node) ImageStatus(_ context.Context, i *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	for _, img := range n.images {
		if strings.HasPrefix(img.Id, "sha256:"+i.Image) {
			return &runtimeapi.ImageStatusResponse{Image: img}, nil
		}
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (n *node) RemoveImage(_ context.Context, i *runtimeapi.ImageSpec) error {
	if n.refuse[i.Image] {
		return errors.New("it is in use")
	}
	n.removed = append(n.removed, i.Image)
	n.images = slices.DeleteFunc(n.images, func(o *runtimeapi.Image) bool { return o.Id == i.Image })
	return nil
}

func (n *node) List() []*podworker.Snapshot { return n.pods }
func (n *node) Mark() uint64                { return 0 }
func (n *node) Forget(id string, _ uint64) error {
	n.forgotten = append(n.forgotten, id)
	return nil
}
func (n *node) Retain([]string, uint64) error { return nil }
func (n *node) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	n.events = append(n.events, kind+" "+reason+": "+fmt.Sprintf(format, args...))
}

func (n *node) room() disk.Room {
	r := disk.Room{Total: 1000 * mi}
	used := n.taken
	for _, i := range n.images {
		used += i.Size
	}
	r.Free = r.Total - min(used, r.Total)
	return r
}

func (n *node) add(id string, tags ...string) {
	n.images = append(n.images, &runtimeapi.Image{Id: "sha256:" + id, RepoTags: tags, Size: 100 * mi})
}

func (n *node) collector(p Policy) *Collector {
	return New(Config{
		Policy: p, Runtime: n, Images: n, Pods: n, Records: n, Events: n, Node: func() *v1.ObjectReference { return &v1.ObjectReference{} },
		Room: func() (disk.Room, error) { return n.room(), nil }, Removed: func(string) {}, Changed: func() {},
	})
}

func pod(life podplan.Life, images ...string) *podworker.Snapshot {
	p := &v1.Pod{}
	p.UID = types.UID(strings.Join(images, "+"))
	for _, i := range images {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: i, Image: i})
	}
	s := &podworker.Snapshot{Pod: p, At: time.Now()}
	s.Plan.Life = life
	return s
}

var usual = Policy{High: 85, Low: 80, MinAge: 2 * time.Minute}

// What a container has, or a pod needs, is never removed, by whatever name.
func TestNeededImagesStay(t *testing.T) {
	n := &node{}
	for _, id := range []string{"dead", "byref", "byname", "tagged", "digest", "short1234", "init", "debug", "volume", "mounted", "pulled", "ended", "free"} {
		n.add(id, "registry.io/"+id+":1")
	}
	n.images[4].RepoDigests = []string{"registry.io/app@sha256:" + strings.Repeat("a", 64)}
	n.images[2].RepoTags = []string{"docker.io/library/short:latest"}
	n.images = append(n.images, &runtimeapi.Image{Id: "sha256:pause", Pinned: true})
	n.containers = []*runtimeapi.Container{{ImageId: "sha256:dead"}, {ImageRef: "sha256:byref"}, {Image: &runtimeapi.ImageSpec{Image: "short"}}}
	waits := pod(podplan.PodPending, "registry.io/tagged:1", "registry.io/app@sha256:"+strings.Repeat("a", 64), "short12", "registry.io/nowhere:1")
	waits.Pod.Spec.InitContainers = []v1.Container{{Image: "registry.io/init:1"}}
	waits.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Image: "registry.io/debug:1"}}}
	waits.Pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "registry.io/volume:1"}}}}
	waits.Input.Images = map[string]podplan.Image{"x": {Ref: "sha256:pulled"}}
	mounts := pod(podplan.PodTerminated, "registry.io/ended:1")
	mounts.Input.Containers = []podplan.Container{{Mounts: []podplan.Mount{{Image: "sha256:mounted"}}}}
	n.pods = []*podworker.Snapshot{waits, mounts}
	if _, err := n.collector(usual).DeleteUnused(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"sha256:ended", "sha256:free"}; !slices.Equal(n.removed, want) || !slices.Equal(n.forgotten, want) {
		t.Errorf("removed %q, forgotten %q, want %q", n.removed, n.forgotten, want)
	}
}

// Without a certain answer about what is in use nothing goes; an image that cannot be removed does not
// keep the others.
func TestUncertainty(t *testing.T) {
	n := &node{broken: errors.New("the runtime is away")}
	n.add("a")
	n.add("b")
	c := n.collector(usual)
	if _, err := c.DeleteUnused(t.Context()); err == nil || len(n.removed) > 0 {
		t.Errorf("removed %q, %v", n.removed, err)
	}
	n.broken, n.refuse = nil, map[string]bool{"sha256:a": true}
	freed, err := c.DeleteUnused(t.Context())
	if err == nil || !strings.Contains(err.Error(), "it is in use") || freed != 100*mi || !slices.Equal(n.removed, []string{"sha256:b"}) {
		t.Errorf("removed %q, %d bytes, %v", n.removed, freed, err)
	}
}

func run(t *testing.T, c *Collector) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}

// A disk that is too full loses the images that were used least recently, and no more of them than
// necessary.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{taken: 300 * mi}
		n.add("a", "a:1")
		n.add("b", "b:1")
		n.add("c", "c:1")
		a := pod(podplan.PodRunning, "a:1")
		n.pods = []*podworker.Snapshot{a, pod(podplan.PodRunning, "c:1")}
		c := n.collector(usual)
		run(t, c)
		n.pods = n.pods[1:]
		c.Poke()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c.Saw(n.room())
		synctest.Wait()
		if len(n.removed) > 0 {
			t.Fatalf("at 600 of 1000 MiB: removed %q", n.removed)
		}
		n.add("new", "new:1")
		n.taken = 480 * mi
		c.Saw(n.room())
		synctest.Wait()
		if want := []string{"sha256:b"}; !slices.Equal(n.removed, want) {
			t.Fatalf("at 880: removed %q, want %q", n.removed, want)
		}
		n.taken = 680 * mi // a and new are free; new is too young
		c.Saw(n.room())
		synctest.Wait()
		if want := []string{"sha256:b", "sha256:a"}; !slices.Equal(n.removed, want) {
			t.Fatalf("removed %q, want %q", n.removed, want)
		}
		if len(n.events) != 1 || n.events[0] != "Warning FreeDiskSpaceFailed: Failed to garbage collect required amount of images. "+
			"Attempted to free 188743680 bytes, but only found 104857600 bytes eligible to free." {
			t.Errorf("%q", n.events)
		}
		looks := n.looks
		for range 25 { // the guard goes on to see it
			c.Saw(n.room())
			time.Sleep(10 * time.Second)
		}
		if n.looks > looks+1 {
			t.Errorf("%d looks in four minutes at a disk that images do not fill", n.looks-looks)
		}
		time.Sleep(time.Minute)
		c.Saw(n.room())
		synctest.Wait()
		if len(n.removed) != 3 || n.removed[2] != "sha256:new" {
			t.Errorf("after five minutes: removed %q", n.removed)
		}
	})
}

// With an age limit an unused image goes when it is reached, and one that comes back into use does not;
// nothing is looked at in between. That somebody sets the clock does not matter: there is none but the
// monotonic one.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		n.add("a", "a:1")
		n.add("b", "b:1")
		p := usual
		p.MaxAge = 24 * time.Hour
		c := n.collector(p)
		run(t, c)
		time.Sleep(12 * time.Hour)
		n.pods = []*podworker.Snapshot{pod(podplan.PodRunning, "b:1")}
		c.Poke()
		time.Sleep(11*time.Hour + 59*time.Minute)
		if len(n.removed) > 0 || n.looks > 3 {
			t.Fatalf("removed %q, %d looks", n.removed, n.looks)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if !slices.Equal(n.removed, []string{"sha256:a"}) {
			t.Errorf("after a day: removed %q", n.removed)
		}
		n.pods = nil
		c.Poke()
		time.Sleep(23 * time.Hour)
		if len(n.removed) != 1 {
			t.Fatalf("a day after its start, not after its end: removed %q", n.removed)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if !slices.Equal(n.removed, []string{"sha256:a", "sha256:b"}) {
			t.Errorf("removed %q", n.removed)
		}
	})
}

// A pod that comes while images are removed keeps its image.
func TestPodThatComesMeanwhile(t *testing.T) {
	n := &node{}
	n.add("a", "a:1")
	n.add("b", "b:1")
	c := n.collector(usual)
	c.cfg.Removed = func(string) { n.pods = append(n.pods, pod(podplan.PodPending, "b:1")) }
	if _, err := c.DeleteUnused(t.Context()); err != nil || !slices.Equal(n.removed, []string{"sha256:a"}) {
		t.Errorf("removed %q, %v", n.removed, err)
	}
}
