package criconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// ContainerInput is what a container's configuration depends on.
type ContainerInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Attempt   uint32
	// ImageRef is the image that was made sure of; ImageUID and ImageUser are from its
	// configuration.
	ImageRef  string
	ImageUID  *int64
	ImageUser string
	Env       []Env
	Mounts    []*runtimeapi.Mount
	Devices   []*runtimeapi.Device
	// Plugged is what device plugins want the container to have, for what they gave it.
	Plugged Plugged
	// NodeMemory, in bytes, scales the OOM score.
	NodeMemory int64
	// PageSizes of the node's huge pages.
	PageSizes []string
	// Swap that the container may use; nil if it cannot be limited.
	Swap *Swap
	// MemoryQoS is what the kernel is told of the memory; nil without cgroup v2. Allocatable is the node's memory for pods, in
	// bytes.
	MemoryQoS   *MemoryQoS
	Allocatable int64
	// OOMGroup: if one process runs out of memory, all of the container's are killed (cgroup v2).
	OOMGroup bool
	Dirs     Dirs
	// SeccompDefault: RuntimeDefault applies where the pod says nothing.
	SeccompDefault bool
	CFS            CFS
	// CPUs are those on which the container may run, "" for all; Own says that nobody else may: then its use of them is not
	// limited.
	CPUs string
	Own  bool
	// Mems are the NUMA nodes from which the container has its memory, "" for all.
	Mems string
	// TargetID of an ephemeral container with a target.
	TargetID string
	// UserNS has the IDs of a pod with a user namespace of its own.
	UserNS *runtimeapi.UserNamespace
}

// Plugged is what device plugins want a container to have. Of a variable that the pod sets itself, the pod's value counts.
type Plugged struct {
	Env         []Env
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	Annotations map[string]string
	CDI         []string // qualified names of devices
}

// Container returns the configuration of one instance.
func Container(in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	c := in.Container
	if err := verifyNonRoot(in); err != nil {
		return nil, err
	}
	lookup := func(name string) (string, bool) {
		for _, e := range in.Env {
			if e.Name == name {
				return e.Value, true
			}
		}
		return "", false
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:    &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:  expandAll(c.Command, lookup), Args: expandAll(c.Args, lookup),
		WorkingDir: c.WorkingDir,
		Mounts:     slices.Concat(in.Mounts, in.Plugged.Mounts), Devices: slices.Concat(in.Devices, in.Plugged.Devices),
		Labels: map[string]string{
			pods.LabelPodName: in.Pod.Name, pods.LabelPodNamespace: in.Pod.Namespace, pods.LabelPodUID: string(in.Pod.UID), pods.LabelContainerName: c.Name,
		},
		Annotations: containerAnnotations(in),
		LogPath:     LogPath(c.Name, in.Attempt),
		Stdin:       c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		StopSignal: stopSignal(c),
	}
	for _, name := range in.Plugged.CDI {
		cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	for name, value := range in.Plugged.Annotations {
		if _, ours := cfg.Annotations[name]; !ours {
			cfg.Annotations[name] = value
		}
	}
	for _, e := range in.Plugged.Env {
		if _, own := lookup(e.Name); !own {
			cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
		}
	}
	for _, e := range in.Env {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	sc, err := containerSecurity(in)
	if err != nil {
		return nil, err
	}
	res := ContainerResources(in.Pod, c, in.CFS)
	res.HugepageLimits = hugepages(in.Pod, c, in.PageSizes)
	res.OomScoreAdj = OOMScoreAdj(in.Pod, c, in.NodeMemory)
	res.Unified = in.unified()
	res.CpusetMems = in.Mems
	if res.CpusetCpus = in.CPUs; in.Own && !in.CFS.Off {
		res.CpuQuota = cpuUnlimited
	}
	cfg.Linux = &runtimeapi.LinuxContainerConfig{Resources: res, SecurityContext: sc}
	for _, m := range cfg.Mounts { // owners appear in the container as they are on the node
		m.UidMappings, m.GidMappings = in.UserNS.GetUids(), in.UserNS.GetGids()
	}
	return cfg, nil
}

// unified returns the settings that only cgroup v2 has.
func (in *ContainerInput) unified() map[string]string {
	s := map[string]string{}
	maps.Copy(s, in.Swap.settings(in.Pod, in.Container, in.NodeMemory))
	maps.Copy(s, in.MemoryQoS.container(in.Pod, in.Container, in.Allocatable))
	if in.OOMGroup {
		s["memory.oom.group"] = "1"
	}
	if len(s) == 0 {
		return nil
	}
	return s
}

func expandAll(list []string, lookup func(string) (string, bool)) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, Expand(s, lookup))
	}
	return out
}

func containerAnnotations(in ContainerInput) map[string]string {
	c := in.Container
	a := map[string]string{
		pods.AnnotationHash:          pods.Hash(c),
		pods.AnnotationRestartCount:  fmt.Sprint(in.Attempt),
		pods.AnnotationMessagePath:   c.TerminationMessagePath,
		pods.AnnotationMessagePolicy: string(c.TerminationMessagePolicy),
		pods.AnnotationPodGrace:      fmt.Sprint(pods.Grace(in.Pod)),
	}
	if g := in.Pod.DeletionGracePeriodSeconds; g != nil {
		a[pods.AnnotationPodDeleteGrace] = fmt.Sprint(*g)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if data, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[pods.AnnotationPreStop] = string(data)
		}
	}
	if len(c.Ports) > 0 {
		if data, err := json.Marshal(c.Ports); err == nil {
			a[pods.AnnotationPorts] = string(data)
		}
	}
	return a
}

func stopSignal(c *v1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	name := string(*c.Lifecycle.StopSignal)
	// The API writes SIGRTMIN+1, the CRI SIGRTMINPLUS1.
	name = strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+name])
}
