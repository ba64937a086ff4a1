package criconfig

import (
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Layout is where the cgroups of pods lie: by QoS class, below a root. A runtime
// that works through systemd wants slices, whose names tell the whole path.
type Layout struct {
	Root    string
	Systemd bool
}

// QOS is the cgroup of a QoS class.
func (l Layout) QOS(class v1.PodQOSClass) string {
	sub := ""
	switch class {
	case v1.PodQOSBurstable:
		sub = "burstable"
	case v1.PodQOSBestEffort:
		sub = "besteffort"
	}
	if !l.Systemd {
		return path.Join("/", l.Root, "kubepods", sub)
	}
	base := path.Join("/", l.Root, "kubepods.slice")
	if sub == "" {
		return base
	}
	return path.Join(base, "kubepods-"+sub+".slice")
}

// Pod is the pod's cgroup.
func (l Layout) Pod(pod *v1.Pod) string { return l.pod(qos.GetPodQOS(pod), string(pod.UID)) }

func (l Layout) pod(class v1.PodQOSClass, uid string) string {
	dir := l.QOS(class)
	if !l.Systemd {
		return path.Join(dir, "pod"+uid)
	}
	slice := strings.TrimSuffix(path.Base(dir), ".slice")
	return path.Join(dir, slice+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// Parent is what the runtime is told as the parent of the pod's containers.
func (l Layout) Parent(pod *v1.Pod) string {
	if l.Systemd {
		return path.Base(l.Pod(pod))
	}
	return l.Pod(pod)
}

// Candidates are all places where a pod's cgroup may be, whatever its class was.
func (l Layout) Candidates(uid string) []string {
	var out []string
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		out = append(out, l.pod(class, uid))
	}
	return out
}

// UID is that of the pod whose cgroup has a name; false for a group of nobody's. A UID in
// the name of a slice has dashes where it has underscores.
func (l Layout) UID(name string) (string, bool) {
	if !l.Systemd {
		return strings.CutPrefix(name, "pod")
	}
	name, slice := strings.CutSuffix(name, ".slice")
	_, uid, pod := strings.Cut(name, "-pod")
	return strings.ReplaceAll(uid, "_", "-"), slice && pod
}
