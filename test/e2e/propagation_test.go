package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/mount"
)

// TestWhatAPodMountsForOthers in the kubelet's folder, as the pods of CSI drivers do it, is seen by the machine and by pods
// that were there before. Whether the machine's own mounts are shared makes no difference.
func TestWhatAPodMountsForOthers(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	folder := filepath.Join(c.data, "kubelet", "plugins")
	with := func(propagation v1.MountPropagationMode) func(*v1.Pod) {
		return func(p *v1.Pod) {
			kind := v1.HostPathDirectory // the kubelet has made it
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder, Type: &kind}}}}
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v", MountPropagation: &propagation}}
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(propagation == v1.MountPropagationBidirectional)}
		}
	}
	c.create(busybox("reader", with(v1.MountPropagationHostToContainer)))
	c.create(busybox("alone", with(v1.MountPropagationNone)))
	c.await("reader", "ready", ready)
	c.await("alone", "ready", ready)
	c.create(busybox("driver", with(v1.MountPropagationBidirectional)))
	c.await("driver", "ready", ready)
	c.exec("driver", "sh", "-c", "mkdir /v/made && mount -t tmpfs none /v/made && echo hello > /v/made/f")
	point := filepath.Join(folder, "made")
	if there, err := mount.Mounted(point); err != nil || !there {
		t.Errorf("the machine does not see what a pod has mounted: %v", err)
	}
	if got := c.exec("reader", "cat", "/v/made/f"); strings.TrimSpace(got) != "hello" {
		t.Errorf("another pod reads %q", got)
	}
	if got := c.exec("alone", "ls", "/v/made"); got != "" {
		t.Errorf("a pod that does not want it sees %q", got)
	}
	c.exec("driver", "umount", "/v/made")
	if got := c.exec("reader", "ls", "/v/made"); got != "" {
		t.Errorf("after it was unmounted another pod sees %q", got)
	}
	if there, err := mount.Mounted(point); err != nil || there {
		t.Errorf("it is still mounted on the machine: %v", err)
	}
	for _, name := range []string{"driver", "reader", "alone"} {
		c.delete(name)
	}
}
