package criconfig

import (
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LogDir is the folder of a pod's logs.
func LogDir(root string, pod *v1.Pod) string {
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// LogPath is a container's log relative to the pod's folder.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// LogSymlink is the name under which an instance's log appears in the folder of
// all containers' logs.
func LogSymlink(dir string, pod *v1.Pod, container, id string) string {
	suffix := container + "-" + id + ".log"
	name := pod.Name + "_" + pod.Namespace
	const maxName = 251
	if over := len(name) + 1 + len(suffix) - maxName; over > 0 {
		name = name[:max(len(name)-over, 0)]
	}
	return filepath.Join(dir, name+"_"+suffix)
}

// Dirs are the places of the pods' files below the kubelet's root folder.
type Dirs struct{ Root string }

// Pods is the folder of all pods.
func (d Dirs) Pods() string { return filepath.Join(d.Root, "pods") }

// Pod is the folder of one pod.
func (d Dirs) Pod(uid types.UID) string { return filepath.Join(d.Pods(), string(uid)) }

// Volumes is the folder of a pod's volumes.
func (d Dirs) Volumes(uid types.UID) string { return filepath.Join(d.Pod(uid), "volumes") }

// Subpaths is the folder of the binds of a pod's subPaths.
func (d Dirs) Subpaths(uid types.UID) string { return filepath.Join(d.Pod(uid), "volume-subpaths") }

// EtcHosts is the pod's /etc/hosts.
func (d Dirs) EtcHosts(uid types.UID) string { return filepath.Join(d.Pod(uid), "etc-hosts") }

// Containers has, by container, the files of their last words.
func (d Dirs) Containers(uid types.UID) string { return filepath.Join(d.Pod(uid), "containers") }

// MaxMessage is how much is kept of a termination message, in bytes: the end of it.
const MaxMessage = 4096

// MessageFile is the file that an instance finds at its terminationMessagePath.
func (d Dirs) MessageFile(uid types.UID, container string, attempt uint32) string {
	return filepath.Join(d.Containers(uid), container, strconv.FormatUint(uint64(attempt), 10))
}

// Seccomp is the folder of Localhost seccomp profiles.
func (d Dirs) Seccomp() string { return filepath.Join(d.Root, "seccomp") }
