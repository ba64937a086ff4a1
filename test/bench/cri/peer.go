package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/test/runtimes"
)

// ownArg marks the processes of the pods themselves.
const ownArg = "1000001"

// peer is a runtime under measurement.
type peer struct {
	*runtimes.Runtime
	client runtimeapi.RuntimeServiceClient
	serial int
}

func newPeer(r *runtimes.Runtime) *peer {
	return &peer{Runtime: r, client: runtimeapi.NewRuntimeServiceClient(r.Conn)}
}

func (p *peer) podConfig() *runtimeapi.PodSandboxConfig {
	p.serial++
	name := fmt.Sprintf("pod-%d", p.serial)
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name},
		Hostname:     name,
		LogDirectory: filepath.Join(p.Dir, "logs", name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: p.Cgroup + "/" + name,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				// as kubelets request it unless the pod shares its processes
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// sandbox is a running pod, with the configuration that its containers need.
type sandbox struct {
	id     string
	config *runtimeapi.PodSandboxConfig
}

func (p *peer) run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig) (sandbox, error) {
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return sandbox{}, err
	}
	resp, err := p.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	return sandbox{resp.GetPodSandboxId(), cfg}, err
}

func (p *peer) create(ctx context.Context, s sandbox, name string) (string, error) {
	resp, err := p.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: s.id, SandboxConfig: s.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: image},
			Command:  []string{"sleep", ownArg},
			LogPath:  name + ".log",
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
				},
			},
		},
	})
	return resp.GetContainerId(), err
}

func (p *peer) start(ctx context.Context, s sandbox, name string) (string, error) {
	id, err := p.create(ctx, s, name)
	if err != nil {
		return "", err
	}
	_, err = p.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return id, err
}

func (p *peer) remove(ctx context.Context, s sandbox) error {
	_, err := p.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.id})
	_, err2 := p.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.id})
	return errors.Join(err, err2)
}

// memory returns what the runtime and its monitors use, in MiB (PSS), without the pods themselves.
func (p *peer) memory() (float64, error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, dir := range procs {
		if !p.owns(dir) {
			continue
		}
		pss, err := pss(dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		total += pss
	}
	return total / 1024, nil
}

func (p *peer) owns(dir string) bool {
	if dir == "/proc/"+strconv.Itoa(p.PID()) {
		return true
	}
	args, err := os.ReadFile(dir + "/cmdline")
	if err != nil || bytes.Contains(args, []byte(ownArg)) {
		return false
	}
	if bytes.Contains(args, []byte(p.Dir)) {
		return true
	}
	groups, err := os.ReadFile(dir + "/cgroup")
	return err == nil && bytes.Contains(groups, []byte(p.Cgroup+"/"))
}

func pss(dir string) (kib float64, err error) {
	text, err := os.ReadFile(dir + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Pss: %f kB", &kib); err == nil {
			return kib, nil
		}
	}
	return 0, fmt.Errorf("%s has no Pss", dir)
}

// pidOf returns a container's first process, from the verbose status that every runtime has.
func (p *peer) pidOf(ctx context.Context, id string) (int, error) {
	resp, err := p.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || info.PID == 0 {
		return 0, fmt.Errorf("container %s has no PID in its info %q: %w", id, resp.Info["info"], err)
	}
	return info.PID, nil
}
