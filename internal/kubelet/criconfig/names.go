package criconfig

import (
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LogDir returns the directory of a pod's logs.
func LogDir(root string, pod *v1.Pod) string {
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// LogPath returns a container's log relative to the pod's directory.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// LogSymlink returns the name under which an instance's log appears in the directory of all
// containers' logs.
func LogSymlink(dir string, pod *v1.Pod, container, id string) string {
	suffix := container + "-" + id + ".log"
	name := pod.Name + "_" + pod.Namespace
	const maxName = 251
	if over := len(name) + 1 + len(suffix) - maxName; over > 0 {
		name = name[:max(len(name)-over, 0)]
	}
	return filepath.Join(dir, name+"_"+suffix)
}

// LogSymlinkPrefix returns what all such names of a pod begin with. Those of other pods may do so too.
func LogSymlinkPrefix(pod *v1.Pod) string {
	const never = 64 // LogSymlink leaves more than that of a name, with IDs of up to twice the usual length
	return pod.Name[:min(len(pod.Name), never)]
}

// Dirs are the locations of the pods' files below the kubelet's root directory.
type Dirs struct{ Root string }

// Records returns the directory of the pods' records.
func (d Dirs) Records() string { return filepath.Join(d.Root, "records") }

// Pods returns the directory of all pods.
func (d Dirs) Pods() string { return filepath.Join(d.Root, "pods") }

// Pod returns the directory of one pod.
func (d Dirs) Pod(uid types.UID) string { return filepath.Join(d.Pods(), string(uid)) }

// Volumes returns the directory of a pod's volumes.
func (d Dirs) Volumes(uid types.UID) string { return filepath.Join(d.Pod(uid), "volumes") }

// Devices returns the directory of the volumes that a pod's containers have as devices.
func (d Dirs) Devices(uid types.UID) string { return filepath.Join(d.Pod(uid), "volumeDevices") }

// Claims returns the directory in which is written what a pod's claims are bound to.
func (d Dirs) Claims(uid types.UID) string { return filepath.Join(d.Pod(uid), "claims") }

// Subpaths returns the directory of the binds of a pod's subPaths.
func (d Dirs) Subpaths(uid types.UID) string { return filepath.Join(d.Pod(uid), "volume-subpaths") }

// EtcHosts returns the path of the pod's /etc/hosts.
func (d Dirs) EtcHosts(uid types.UID) string { return filepath.Join(d.Pod(uid), "etc-hosts") }

// Containers returns the directory with the termination message files, by container.
func (d Dirs) Containers(uid types.UID) string { return filepath.Join(d.Pod(uid), "containers") }

// MaxMessage is how much of a termination message is kept, in bytes: its end.
const MaxMessage = 4096

// MessageFile returns the file that an instance finds at its terminationMessagePath.
func (d Dirs) MessageFile(uid types.UID, container string, attempt uint32) string {
	return filepath.Join(d.Containers(uid), container, strconv.FormatUint(uint64(attempt), 10))
}

// Seccomp returns the directory of Localhost seccomp profiles.
func (d Dirs) Seccomp() string { return filepath.Join(d.Root, "seccomp") }
