package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// The thinnest path, on which everything else builds.
func TestPodRunsLogsExecsAndGoes(t *testing.T) {
	c := startCluster(t)
	c.podRunsLogsExecsAndGoes()
	if got := c.must("trace", "pod/hello"); !strings.Contains(got, "dominated by") {
		t.Errorf("trace: %s", got)
	}
	c.configzNamesTheRuntime()
}

// configzNamesTheRuntime that the kubelet is on; it used to name containerd's usual socket.
func (c *cluster) configzNamesTheRuntime() {
	c.t.Helper()
	want := "unix://" + filepath.Join(c.run, "cri.sock")
	if c.other != nil {
		want = c.other.Endpoint
	}
	node := c.must("kubectl", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	if got := c.kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/configz"); !strings.Contains(got, `"containerRuntimeEndpoint":"`+want+`"`) {
		c.t.Errorf("configz: %s", got)
	}
}

func (c *cluster) podRunsLogsExecsAndGoes() {
	t := c.t
	t.Helper()
	c.create(busybox("hello", script("echo hello from $HOSTNAME; "+loop)))
	p := c.await("hello", "ready", ready)
	node := c.must("kubectl", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.addresses[?(@.type=='InternalIP')].address}")
	if p.Status.PodIP == "" || p.Status.HostIP == "" || !strings.HasPrefix(node, p.Spec.NodeName+" "+p.Status.HostIP) {
		t.Errorf("status: %s, on node %s", describe(p), node)
	}
	c.awaitLog("hello from hello\n", "hello")
	if got := c.exec("hello", "sh", "-c", "echo $((6*7)); hostname -i"); !strings.HasPrefix(got, "42\n"+p.Status.PodIP) {
		t.Errorf("exec: %q, the pod's address is %s", got, p.Status.PodIP)
	}
	if _, err := c.try("kubectl", "exec", "hello", "--", "sh", "-c", "exit 7"); exitCode(err) != 7 {
		t.Errorf("exit code of exec: %v", err)
	}
	c.delete("hello")
}

func TestContainersOutliveTheDaemon(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("stays"))
	before := c.await("stays", "ready", ready)
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM} {
		pid := c.pid()
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		waitGone(t, pid)
		c.up()
		after := c.await("stays", "ready", ready)
		if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
			t.Errorf("daemon %s: container %s became %s, %d restarts", name, a.ContainerID, b.ContainerID, b.RestartCount)
		}
		if after.Status.StartTime == nil || !before.Status.StartTime.Equal(after.Status.StartTime) || before.Status.PodIP != after.Status.PodIP {
			t.Errorf("daemon %s: the status flapped: %+v, then %+v", name, before.Status, after.Status)
		}
		c.exec("stays", "true")
	}
	c.delete("stays")
}

func TestRestartPolicies(t *testing.T) { startCluster(t).restartPoliciesHold() }

func (c *cluster) restartPoliciesHold() {
	t := c.t
	t.Helper()
	c.create(busybox("succeeds", script("echo done"), policy(v1.RestartPolicyNever)))
	c.create(busybox("fails", script("exit 3"), policy(v1.RestartPolicyNever)))
	c.create(busybox("crashes", script("exit 4"), policy(v1.RestartPolicyAlways)))
	c.create(busybox("once-more", script("test -e /data/x || { touch /data/x; exit 1; }"), policy(v1.RestartPolicyOnFailure), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}))
	c.await("succeeds", "Succeeded", phase(v1.PodSucceeded))
	if p := c.await("fails", "Failed", phase(v1.PodFailed)); p.Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
		t.Error(describe(p))
	}
	if p := c.await("once-more", "Succeeded", phase(v1.PodSucceeded)); p.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Error(describe(p))
	}
	p := c.await("crashes", "in CrashLoopBackOff", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	if s := p.Status.ContainerStatuses[0]; s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 4 {
		t.Error(describe(p))
	}
	for _, n := range []string{"succeeds", "fails", "crashes", "once-more"} {
		c.delete(n)
	}
}

// A pod that claims to come from a file of the node is a pod as any other: its status is reported.
func TestPodCannotClaimToBeTheNodesOwn(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("claims", func(p *v1.Pod) {
		p.Annotations = map[string]string{pods.AnnotationConfigSource: "file", pods.AnnotationConfigHash: "x", pods.AnnotationConfigSeen: "y"}
	}))
	c.await("claims", "ready", ready)
	c.delete("claims")
}
