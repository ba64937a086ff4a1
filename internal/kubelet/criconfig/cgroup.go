package criconfig

import (
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Layout says where the cgroups of pods are: by QoS class, below a root. A runtime that works
// through systemd expects slices, whose names contain the whole path.
type Layout struct {
	Root    string
	Systemd bool
}

// QOS returns the cgroup of a QoS class.
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

// Pod returns the pod's cgroup.
func (l Layout) Pod(pod *v1.Pod) string { return l.pod(qos.GetPodQOS(pod), string(pod.UID)) }

func (l Layout) pod(class v1.PodQOSClass, uid string) string {
	dir := l.QOS(class)
	if !l.Systemd {
		return path.Join(dir, "pod"+uid)
	}
	slice := strings.TrimSuffix(path.Base(dir), ".slice")
	return path.Join(dir, slice+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// Parent returns what the runtime is given as the parent of the pod's containers.
func (l Layout) Parent(pod *v1.Pod) string {
	if l.Systemd {
		return path.Base(l.Pod(pod))
	}
	return l.Pod(pod)
}

// Candidates returns all places where a pod's cgroup may be, whatever its QoS class was.
func (l Layout) Candidates(uid string) []string {
	var out []string
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		out = append(out, l.pod(class, uid))
	}
	return out
}

// UID returns the UID of the pod that a cgroup's name belongs to; false if it belongs to none. The
// name of a slice has underscores where the UID has dashes.
func (l Layout) UID(name string) (string, bool) {
	if !l.Systemd {
		return strings.CutPrefix(name, "pod")
	}
	name, slice := strings.CutSuffix(name, ".slice")
	_, uid, pod := strings.Cut(name, "-pod")
	return strings.ReplaceAll(uid, "_", "-"), slice && pod
}
