package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// What newer Kubernetes versions promise for pods and only a real pod can show.

func TestUserNamespaceAndImageVolume(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	// Root of a user namespace is an ordinary user on the way to its files.
	if err := os.Chmod(filepath.Dir(c.data), 0o711); err != nil { //nolint:gosec // as the line above says
		t.Fatal(err)
	}
	c.create(busybox("own", script("id -u; "+loop), func(p *v1.Pod) {
		p.Spec.HostUsers = new(false)
		p.Spec.Volumes = []v1.Volume{
			{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: p.Spec.Containers[0].Image, PullPolicy: v1.PullNever}}},
			{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
			{Name: "image", MountPath: "/image", ReadOnly: true}, {Name: "image", MountPath: "/tools", SubPath: "bin"}, {Name: "data", MountPath: "/data"},
		}
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: new(v1.SIGUSR1)}
		p.Spec.OS = &v1.PodOS{Name: v1.Linux}
	}))
	p := c.await("own", "ready", ready)
	got := strings.Fields(c.exec("own", "sh", "-c", "cat /proc/self/uid_map; id -u; touch /data/x && stat -c %u /data/x; test -x /image/bin/busybox && test -x /tools/busybox && echo there; touch /image/x 2>/dev/null || echo read-only"))
	if want := "0 65536 65536 0 0 there read-only"; strings.Join(got, " ") != want {
		t.Errorf("in the pod: %s, want %s", got, want)
	}
	st := p.Status.ContainerStatuses[0]
	for i, m := range st.VolumeMounts[:2] {
		if m.VolumeStatus == nil || m.VolumeStatus.Image == nil || m.VolumeStatus.Image.ImageRef == "" {
			t.Errorf("mount %d: %+v", i, m)
		}
	}
	if st.User == nil || st.User.Linux.UID != 0 || st.StopSignal == nil || *st.StopSignal != v1.SIGUSR1 {
		t.Errorf("user %+v, stop signal %v", st.User, st.StopSignal)
	}
	c.create(busybox("missing", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "wherry.dev/none:1", PullPolicy: v1.PullNever}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "image", MountPath: "/image"}}
	}))
	c.await("missing", "without its image", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImageNeverPull"
	})
	c.delete("missing")
	c.delete("own")
}

func quantities(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func (c *cluster) resize(name string, r v1.ResourceRequirements) {
	c.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the kubelet writes its status meanwhile
		p := c.get(name)
		p.Spec.Containers[0].Resources = r
		_, err := c.client.CoreV1().Pods(p.Namespace).UpdateResize(c.t.Context(), name, p, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// limitsOf reads the container's own cgroup, of either version.
func (c *cluster) limitsOf(name string) string {
	return strings.TrimSpace(c.exec(name, "sh", "-c",
		"cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max; cat cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 cpu.max"))
}

func TestResizeInPlaceAndByRestart(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("r", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: quantities("100m", "64Mi"), Limits: quantities("200m", "128Mi")}
		p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	}))
	before := c.await("r", "ready", ready).Status.ContainerStatuses[0]
	if got := c.limitsOf("r"); got != "134217728\n20000" {
		t.Fatalf("limits at first: %s", got)
	}
	settled := func(cpu, memory string) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool {
			if !ready(p) || p.Status.ContainerStatuses[0].Resources == nil {
				return false
			}
			for _, cond := range p.Status.Conditions {
				if cond.Type == v1.PodResizeInProgress || cond.Type == v1.PodResizePending {
					return false
				}
			}
			have, want := p.Status.ContainerStatuses[0].Resources.Limits, quantities(cpu, memory)
			return have.Cpu().Equal(*want.Cpu()) && have.Memory().Equal(*want.Memory())
		}
	}
	c.resize("r", v1.ResourceRequirements{Requests: quantities("150m", "64Mi"), Limits: quantities("400m", "128Mi")})
	after := c.await("r", "given more CPU", settled("400m", "128Mi")).Status.ContainerStatuses[0]
	if got := c.limitsOf("r"); got != "134217728\n40000" || after.ContainerID != before.ContainerID || after.RestartCount != 0 {
		t.Errorf("limits %s, %d restarts", got, after.RestartCount)
	}
	if got := after.AllocatedResources.Cpu().String(); got != "150m" {
		t.Errorf("allocated: %s", got)
	}
	c.resize("r", v1.ResourceRequirements{Requests: quantities("150m", "64Mi"), Limits: quantities("400m", "256Mi")})
	after = c.await("r", "given more memory", settled("400m", "256Mi")).Status.ContainerStatuses[0]
	if got := c.limitsOf("r"); got != "268435456\n40000" || after.RestartCount != 1 {
		t.Errorf("limits %s, %d restarts", got, after.RestartCount)
	}
	c.create(busybox("filler", func(p *v1.Pod) {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), c.get("r").Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		rest := resource.NewMilliQuantity(n.Status.Allocatable.Cpu().MilliValue()-300, resource.DecimalSI)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *rest}
	}))
	c.await("filler", "ready", ready)
	c.resize("r", v1.ResourceRequirements{Requests: quantities("400m", "64Mi"), Limits: quantities("400m", "256Mi")})
	c.await("r", "deferred", func(p *v1.Pod) bool {
		if p == nil {
			return false
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == v1.PodResizePending && cond.Reason == v1.PodReasonDeferred && cond.ObservedGeneration == p.Generation {
				return true
			}
		}
		return false
	})
	c.delete("filler")
	p := c.await("r", "given what it waited for", func(p *v1.Pod) bool {
		return settled("400m", "256Mi")(p) && p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == 400
	})
	if p.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Error(describe(p))
	}
	c.delete("r")
}

// TestExitRestartsAllContainers: by a rule of the worker container, whose pod otherwise restarts
// nothing, and in the same sandbox.
func TestExitRestartsAllContainers(t *testing.T) {
	c := startCluster(t)
	never := v1.ContainerRestartPolicyNever
	data := []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	c.create(busybox("train", policy(v1.RestartPolicyNever), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		init, worker, other := p.Spec.Containers[0], p.Spec.Containers[0], p.Spec.Containers[0]
		init.Name, worker.Name, other.Name = "init", "worker", "other"
		init.VolumeMounts, worker.VolumeMounts = data, data
		init.Command = []string{"sh", "-c", "echo x >> /data/inits"}
		// A container that has never run is not restarted: the worker waits for the other one.
		worker.Command = []string{"sh", "-c", "test -e /data/again || { touch /data/again; until [ -e /data/other ]; do sleep 0.1; done; exit 42; }; " + loop}
		other.VolumeMounts = data
		other.Command = []string{"sh", "-c", "touch /data/other; " + loop}
		worker.RestartPolicy = &never
		worker.RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}
		p.Spec.InitContainers, p.Spec.Containers = []v1.Container{init}, []v1.Container{worker, other}
	}))
	var ip string
	p := c.await("train", "restarted as a whole", func(p *v1.Pod) bool {
		if p != nil && ip == "" {
			ip = p.Status.PodIP
		}
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 && p.Status.ContainerStatuses[1].RestartCount == 1 && p.Status.InitContainerStatuses[0].RestartCount == 1
	})
	if last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 42 || p.Status.PodIP != ip {
		t.Errorf("address %s, before %s\n%s", p.Status.PodIP, ip, describe(p))
	}
	if got := c.kubectl("exec", "train", "-c", "worker", "--", "cat", "/data/inits"); got != "x\nx\n" {
		t.Errorf("the init container ran %q", got)
	}
	c.delete("train")
}
