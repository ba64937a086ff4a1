package cri

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestVerboseInfo: scripts find processes and namespaces where containerd has them.
func TestVerboseInfo(t *testing.T) {
	n := newNode(t)
	n.needUserns()
	p := n.pod(sharedPID, withUserns)
	id := p.start(inSharedPID(containerConfig("c", "sh", "-c", "echo up; while :; do sleep 1000; done")))
	n.waitLog(id, "up")
	sandbox, err := n.run.PodSandboxStatus(t.Context(), p.id, true)
	n.must(err)
	container, err := n.run.ContainerStatus(t.Context(), id, true)
	n.must(err)
	type view struct {
		SandboxID   string
		PID         int
		Privileged  bool
		RuntimeType string
		RuntimeSpec specs.Spec
		Config      struct{ Metadata *runtimeapi.ContainerMetadata }
		CNIResult   struct {
			Interfaces map[string]struct{ IPConfigs []struct{ IP string } }
		}
	}
	var b, c view
	n.must(json.Unmarshal([]byte(sandbox.GetInfo()["info"]), &b))
	n.must(json.Unmarshal([]byte(container.GetInfo()["info"]), &c))
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", b.PID)); err != nil || string(comm) != "init\n" {
		t.Errorf("the sandbox's process is %q, %v", comm, err)
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.PID)); err != nil || string(comm) != "sh\n" {
		t.Errorf("the container's process is %q, %v", comm, err)
	}
	kinds := map[specs.LinuxNamespaceType]string{}
	for _, ns := range b.RuntimeSpec.Linux.Namespaces {
		kinds[ns.Type] = ns.Path
	}
	for _, k := range []specs.LinuxNamespaceType{"network", "ipc", "uts", "pid", "user"} {
		if _, err := os.Stat(kinds[k]); err != nil {
			t.Errorf("namespace %s: %v", k, err)
		}
	}
	if ips := b.CNIResult.Interfaces["eth0"].IPConfigs; len(ips) != 1 || ips[0].IP != sandbox.GetStatus().GetNetwork().GetIp() {
		t.Errorf("addresses %v", ips)
	}
	if c.SandboxID != p.id || c.RuntimeType != "crun" || c.Config.Metadata.GetName() != "c" || c.RuntimeSpec.Process.Args[0] != "sh" {
		t.Errorf("container: %+v", c)
	}
	n.must(n.run.StopPodSandbox(t.Context(), p.id))
	container, err = n.run.ContainerStatus(t.Context(), id, true)
	n.must(err)
	n.must(json.Unmarshal([]byte(container.GetInfo()["info"]), &c))
	if c.PID != 0 {
		t.Errorf("a container that has ended has process %d", c.PID)
	}
	st, err := n.run.Status(t.Context(), true)
	n.must(err)
	var cfg struct {
		StateDir   string
		Containerd struct{ DefaultRuntimeName string }
	}
	n.must(json.Unmarshal([]byte(st.GetInfo()["config"]), &cfg))
	if cfg.StateDir != n.cfg.State || cfg.Containerd.DefaultRuntimeName != "crun" {
		t.Errorf("config: %+v", cfg)
	}
}

// TestStreamedLists: the streaming calls return the same as the lists.
func TestStreamedLists(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.start(containerConfig("c", "sleep", "1000"))
	rc, ic := n.dial()
	pods, err := rc.StreamPodSandboxes(t.Context(), &runtimeapi.StreamPodSandboxesRequest{})
	n.must(err)
	if got, err := pods.Recv(); err != nil || len(got.GetPodSandboxes()) != 1 || got.GetPodSandboxes()[0].GetId() != p.id {
		t.Errorf("pods: %v, %v", got, err)
	}
	containers, err := rc.StreamContainerStats(t.Context(), &runtimeapi.StreamContainerStatsRequest{})
	n.must(err)
	if got, err := containers.Recv(); err != nil || len(got.GetContainerStats()) != 1 || got.GetContainerStats()[0].GetAttributes().GetId() != id {
		t.Errorf("container stats: %v, %v", got, err)
	}
	stats, err := rc.StreamPodSandboxStats(t.Context(), &runtimeapi.StreamPodSandboxStatsRequest{})
	n.must(err)
	if got, err := stats.Recv(); err != nil || len(got.GetPodSandboxStats()) != 1 {
		t.Errorf("pod stats: %v, %v", got, err)
	}
	metrics, err := rc.StreamPodSandboxMetrics(t.Context(), &runtimeapi.StreamPodSandboxMetricsRequest{})
	n.must(err)
	if got, err := metrics.Recv(); err != nil || len(got.GetPodSandboxMetrics()) != 1 || got.GetPodSandboxMetrics()[0].GetPodSandboxId() != p.id {
		t.Errorf("metrics: %v, %v", got, err)
	}
	images, err := ic.StreamImages(t.Context(), &runtimeapi.StreamImagesRequest{})
	n.must(err)
	if got, err := images.Recv(); err != nil || len(got.GetImages()) != 1 {
		t.Errorf("images: %v, %v", got, err)
	}
}
