package sim

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/mount"
)

// mishap makes one thing happen from outside.
func (l *life) mishap() {
	for range 1 + l.r.IntN(2) {
		if !l.pass(l.upTo(10 * time.Millisecond)) {
			return
		}
		deeds := []func(){l.killContainer, l.killSandbox, l.dropContainer, l.restartKubelet, l.objectChanges, l.evict, l.dropImage, l.reboot}
		if !l.static {
			deeds = append(deeds, l.changeObject, l.changeObject, l.changeImage, l.changeLabels, l.addEphemeral, l.remove, l.gate, l.resize, l.resizePod, l.shortenDeadline)
		} else {
			deeds = append(deeds, l.replaceManifest, l.putBack, l.deleteMirror)
			if l.chance(0.2) {
				deeds = append(deeds, l.remove)
			}
		}
		if l.static || l.real { // a statusWriter writes only what it was last told
			deeds = append(deeds, l.patchStatus, l.patchStatus)
		}
		deeds[l.r.IntN(len(deeds))]()
	}
}

func (l *life) note(format string, args ...any) {
	l.hist.add(Event{What: Note, Text: fmt.Sprintf(format, args...)})
}

func (l *life) anyContainer() string {
	ids := l.rt.Live("", "")
	if len(ids) == 0 {
		return ""
	}
	return ids[l.r.IntN(len(ids))]
}

func (l *life) killContainer() {
	if id := l.anyContainer(); id != "" {
		l.note("%s is killed from outside", id)
		l.rt.Kill(id, 9)
	}
}

func (l *life) killSandbox() {
	if ids := l.rt.SandboxIDs(""); len(ids) > 0 {
		id := ids[l.r.IntN(len(ids))]
		l.note("%s dies", id)
		l.rt.KillSandbox(id)
	}
}

func (l *life) dropContainer() {
	if id := l.anyContainer(); id != "" && l.chance(0.3) {
		l.hist.add(Event{What: RemovedByOthers, ID: id})
		l.rt.Drop(id)
	}
}

func (l *life) restartKubelet() {
	n := l.current.Load()
	if l.chance(0.5) {
		n.kill("from outside")
		return
	}
	l.down()
	l.up()
}

func (l *life) objectChanges() {
	if n := l.current.Load(); n != nil {
		l.note("an object changes")
		n.table.ObjectChanged(l.uid)
	}
}

func (l *life) evict() {
	if n := l.current.Load(); n != nil && l.chance(0.1) {
		l.note("the node evicts the pod")
		e := podplan.Ending{Since: time.Now(), Reason: "Evicted", Message: "low on memory", Disruption: v1.PodReasonTerminationByKubelet}
		if l.chance(0.5) {
			e.Grace = new(l.r.Int64N(20))
		}
		n.table.Evict(l.uid, e)
	}
}

// dropImage does what garbage collection does, or an administrator.
func (l *life) dropImage() {
	image := pick(l.r, imagePresent, imageOther, imagePrivate)
	l.note("%s is removed", image)
	l.rt.DropImage(image)
}

// reboot ends the kubelet and everything that runs; what is on disk stays.
func (l *life) reboot() {
	if !l.chance(0.3) {
		return
	}
	l.current.Load().kill("the machine reboots")
	for _, id := range l.rt.SandboxIDs("") {
		l.rt.KillSandbox(id)
	}
	l.cgroups.clear()
	l.hist.fail(mount.UnmountUnder(l.dir))
}

// change changes the pod's spec.
func (l *life) change(f func(*v1.Pod)) {
	l.api.update(func(p *v1.Pod) {
		f(p)
		p.Generation++
		l.hist.add(Event{What: PodSet, Pod: p})
	})
}

func (l *life) changeImage() {
	i := l.r.Int()
	l.change(func(p *v1.Pod) {
		c := &p.Spec.Containers[i%len(p.Spec.Containers)]
		if i%7 == 0 && len(p.Spec.InitContainers) > 0 {
			c = &p.Spec.InitContainers[0]
		}
		if c.Image == imagePresent {
			c.Image = imageOther
		} else {
			c.Image = imagePresent
		}
	})
}

func (l *life) changeLabels() {
	l.api.update(func(p *v1.Pod) {
		metav1.SetMetaDataLabel(&p.ObjectMeta, "changed", fmt.Sprint(time.Since(dawn).Nanoseconds()))
	})
}

func (l *life) addEphemeral() {
	nature, target := pick(l.r, daemon, job, crasher), pick(l.r, "", "c0")
	l.change(func(p *v1.Pod) {
		name := fmt.Sprintf("e%d", len(p.Spec.EphemeralContainers))
		p.Spec.EphemeralContainers = append(slices.Clone(p.Spec.EphemeralContainers), v1.EphemeralContainer{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{
				Name: name, Image: imagePresent, Command: []string{nature},
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: lastWordsPolicy(name),
			},
			TargetContainerName: target,
		})
	})
}

func (l *life) gate() {
	value := pick(l.r, v1.ConditionTrue, v1.ConditionTrue, v1.ConditionFalse)
	l.api.update(func(p *v1.Pod) {
		p.Status.Conditions = append(slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c v1.PodCondition) bool {
			return c.Type == "example.com/gate"
		}), v1.PodCondition{Type: "example.com/gate", Status: value})
	})
}

// resize changes what a container may use.
func (l *life) resize() {
	i, cpu, memory := l.r.Int(), 10+l.r.Int64N(50), 8+l.r.Int64N(50)
	l.change(func(p *v1.Pod) {
		if c := &p.Spec.Containers[i%len(p.Spec.Containers)]; c.Resources.Requests != nil && l.refusal(p.UID) == "" {
			setResources(&c.Resources, cpu, memory)
		}
	})
}

// resizePod changes what the pod as a whole may use.
func (l *life) resizePod() {
	cpu, memory := 20+l.r.Int64N(100), 60+l.r.Int64N(100)
	if pod := l.want(); pod == nil || pod.Spec.Resources == nil {
		return
	}
	l.change(func(p *v1.Pod) { setResources(p.Spec.Resources, cpu, memory) })
}

func setResources(r *v1.ResourceRequirements, milli, mebi int64) {
	for _, list := range []v1.ResourceList{r.Requests, r.Limits} {
		list[v1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		list[v1.ResourceMemory] = *resource.NewQuantity(mebi<<20, resource.BinarySI)
	}
}

// patchStatus writes, as somebody else, what is the node's to write.
func (l *life) patchStatus() {
	l.note("somebody patches the status")
	l.api.update(func(p *v1.Pod) {
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == v1.PodReady {
				c.Status = v1.ConditionUnknown
			}
		}
	})
}

func (l *life) shortenDeadline() {
	if !l.chance(0.2) {
		return
	}
	d := l.r.Int64N(600) + 1
	l.change(func(p *v1.Pod) {
		if old := p.Spec.ActiveDeadlineSeconds; old == nil || *old > d {
			p.Spec.ActiveDeadlineSeconds = &d
		}
	})
}

// manifest turns a pod into what the source of static pods would make of it.
func manifest(pod *v1.Pod) *v1.Pod {
	pod.Annotations = map[string]string{
		pods.AnnotationConfigSource: "file", pods.AnnotationConfigHash: string(pod.UID),
	}
	pod.Spec.ReadinessGates = nil
	// It may not refer to objects of the API.
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.ConfigMap != nil })
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == "config" })
	return pod
}

// replaceManifest puts another pod of the same name in its place.
func (l *life) replaceManifest() {
	if l.manifest.Load() == nil {
		return
	}
	pod := l.newPod()
	l.hist.add(Event{What: PodAsked, UID: l.uid})
	l.uid, l.uids = pod.UID, append(l.uids, pod.UID)
	l.manifest.Store(pod)
	l.hist.add(Event{What: PodSet, Pod: pod})
	l.watch()
}

// putBack removes the manifest, and brings it back a little later.
func (l *life) putBack() {
	pod := l.manifest.Load()
	if pod == nil {
		return
	}
	l.remove()
	if !l.pass(l.upTo(pick(l.r, 50*time.Millisecond, 5*time.Second, time.Minute))) {
		return
	}
	pod = pod.DeepCopy()
	l.manifest.Store(pod)
	l.hist.add(Event{What: PodSet, Pod: pod})
	l.watch()
}

// deleteMirror deletes the object that shows a static pod in the API.
func (l *life) deleteMirror() {
	l.note("somebody deletes the mirror")
	l.api.remove()
}

// remove deletes the pod: gracefully, by force, or once more with less time.
func (l *life) remove() {
	defer func() { l.hist.add(Event{What: PodAsked, UID: l.uid}) }()
	if l.static {
		l.note("the manifest is removed")
		l.manifest.Store(nil)
		l.watch()
		return
	}
	if l.chance(0.1) {
		l.note("the pod is deleted by force")
		l.api.remove()
		return
	}
	g := l.r.Int64N(40)
	l.change(func(p *v1.Pod) {
		if old := p.DeletionGracePeriodSeconds; old != nil && *old < g {
			g = *old / 2
		}
		p.DeletionGracePeriodSeconds = &g
		p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Duration(g) * time.Second)}
	})
}
