package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/disk"
	"wherry.dev/test/hostile"
	"wherry.dev/test/images"
)

// imageAttacks come through images, and through the registries that serve them.
func imageAttacks(t *testing.T, canaries string) map[string]attack {
	t.Helper()
	root, err := images.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	base, err := root.Tar()
	if err != nil {
		t.Fatal(err)
	}
	srv := hostile.Plain(t)
	out := map[string]attack{}
	add := func(attack string, name, ref string) {
		a := out[attack]
		a.pods = append(a.pods, busybox("x-"+name, func(p *v1.Pod) {
			p.Spec.Containers[0].Image = ref
			p.Spec.Containers[0].Command = []string{"sh", "-c", tries(
				"grep -q own "+canaries+"/*", "grep -q own /l/* /r/* /h /a/b/* /b/*", "head -c 1 /sda", "head -c 1 /mem",
			) + loop}
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1000))}
			if attack == "hostile configs" { // the configs' own settings are not overruled
				p.Spec.Containers[0].Command, p.Spec.SecurityContext = nil, nil
			}
		}))
		out[attack] = a
	}
	for name, i := range hostile.Images(t, canaries, hostile.GzipLayer(t, base)) {
		add("hostile layers", name, srv.Push(t, name+":1", i.Image))
	}
	for name, i := range hostile.Configs(t) {
		add("hostile configs", name, srv.Push(t, name+":1", i.Image))
	}
	for name, i := range hostile.Bombs(t, 1100<<20, 100_000) {
		add("bombs", name, srv.Push(t, name+":1", i.Image))
	}
	for name := range hostile.Lies("") {
		liar := hostile.Plain(t)
		ref := liar.Push(t, "demo:1", hostile.Honest(t))
		lie := hostile.Lies(liar.Host)[name]
		liar.On(lie.Hook)
		kind := "registries that lie"
		if lie.Refused == "" {
			kind = "registries that stall"
		}
		add(kind, name, ref)
	}
	for name, wait := range map[string]func(*v1.Pod) bool{"hostile layers": tried, "hostile configs": tried, "bombs": noRoom, "registries that lie": notPulled} {
		a := out[name]
		a.wait, a.what = wait, fmt.Sprintf("through with the attempt (%s)", name)
		out[name] = a
	}
	return out
}

func mainState(p *v1.Pod) v1.ContainerState {
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return v1.ContainerState{}
	}
	return p.Status.ContainerStatuses[0].State
}

// tried reports whether a pod's image was pulled and run, or was refused with a reason.
func tried(p *v1.Pod) bool {
	s := mainState(p)
	return s.Running != nil || s.Terminated != nil || s.Waiting != nil && s.Waiting.Reason != "ContainerCreating"
}

func notPulled(p *v1.Pod) bool {
	s := mainState(p)
	return s.Waiting != nil && (s.Waiting.Reason == "ErrImagePull" || s.Waiting.Reason == "ImagePullBackOff" || s.Waiting.Reason == "RegistryUnavailable")
}

func noRoom(p *v1.Pod) bool {
	return notPulled(p) && strings.Contains(mainState(p).Waiting.Message, "no space left on device")
}

func (c *cluster) room() disk.Room {
	c.t.Helper()
	room, err := disk.Look(c.data)
	if err != nil {
		c.t.Fatal(err)
	}
	return room
}

// awaitRoom waits until the disk has the room that it had before, give or take a little: images
// stay, and the cluster's data grow.
func (c *cluster) awaitRoom(before disk.Room) {
	c.t.Helper()
	const bytes, inodes = 64 << 20, 12_000
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		now := c.room()
		if now.Free+bytes >= before.Free && now.FreeInodes+inodes >= before.FreeInodes {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("the disk had %+v and has %+v", before, now)
		}
	}
}
