package podops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/volume"
)

// notFound reports whether the runtime does not know the ID.
func notFound(err error) bool { return status.Code(err) == codes.NotFound }

// detail returns an error's own words: for a gRPC status, the message without the code.
func detail(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// createContainer creates an instance. If something that the pod asks for is not available, the
// reason is CreateContainerConfigError; if the runtime refuses, CreateContainerError.
func (o *Ops) createContainer(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	spec := pods.FindContainer(in.Pod, op.Name)
	if spec == nil {
		return failed(fmt.Errorf("container %q is not in the pod's spec", op.Name))
	}
	cfg, sandbox, err := o.containerConfig(ctx, op, in, spec)
	if err != nil {
		return o.createFailed(ctx, in.Pod, op, podplan.ReasonCreateConfigError, err)
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, spec.Name), 0o755); err != nil {
		return o.createFailed(ctx, in.Pod, op, podplan.ReasonCreateConfigError, err)
	}
	if _, err := o.Runtime.CreateContainer(ctx, op.SandboxID, cfg, sandbox); err != nil {
		return o.createFailed(ctx, in.Pod, op, podplan.ReasonCreateContainerError, err)
	}
	o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Created", "Container created")
	return podplan.Result{}
}

func (o *Ops) createFailed(ctx context.Context, pod *v1.Pod, op podplan.Op, reason string, err error) podplan.Result {
	if ctx.Err() == nil {
		o.containerEvent(pod, op.Name, v1.EventTypeWarning, "Failed", "Error: %s", detail(err))
	}
	return podplan.Result{Err: err, Reason: reason, Message: detail(err), ImageGone: errors.Is(err, errImageGone)}
}

var errImageGone = errors.New("is no longer on the node")

// containerConfig gathers everything that an instance is created from.
func (o *Ops) containerConfig(ctx context.Context, op podplan.Op, in *podplan.Input, spec *v1.Container) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error) {
	pod := in.Pod
	i := slices.IndexFunc(in.Sandboxes, func(s podplan.Sandbox) bool { return s.ID == op.SandboxID })
	if i < 0 {
		return nil, nil, fmt.Errorf("sandbox %s is gone", op.SandboxID)
	}
	ips := in.Sandboxes[i].IPs
	if pod.Spec.HostNetwork {
		ips = in.Node.HostIPs
	}
	env, err := o.environment(ctx, in, spec, ips)
	if err != nil {
		return nil, nil, err
	}
	hosts, err := o.hosts(pod, ips)
	if err != nil {
		return nil, nil, err
	}
	mounts, users, err := o.mountsAndUsers(ctx, op, in, volume.ContainerInput{Container: spec, Env: env, Hosts: hosts})
	if err != nil {
		return nil, nil, err
	}
	devices, err := o.Volumes.ContainerDevices(pod, spec)
	if err != nil {
		return nil, nil, err
	}
	plugged, err := o.plugged(ctx, in, spec)
	if err != nil {
		return nil, nil, err
	}
	own, mems := "", ""
	if v := in.Record.Verdict; v != nil {
		own, mems = v.CPUs[spec.Name], memory.NodesOf(v.Memory, spec.Name)
	}
	set, err := o.CPUs(ctx, own)
	if err != nil {
		return nil, nil, err
	}
	node := o.Node()
	input := criconfig.ContainerInput{
		Pod: pod, Container: spec, Attempt: op.Attempt, ImageRef: in.Images[spec.Name].Ref, Env: env, Mounts: mounts, Devices: devices, Plugged: plugged,
		NodeMemory: node.Memory, PageSizes: criconfig.PageSizes(node.Allocatable), Swap: o.Swap, MemoryQoS: o.MemoryQoS, Allocatable: o.allocatableMemory(),
		OOMGroup: o.OOMGroup, Dirs: o.Dirs, SeccompDefault: o.SeccompDefault, CFS: o.CFS, TargetID: o.target(in, spec.Name),
		UserNS: users, CPUs: set, Own: own != "" && set == own, Mems: mems,
	}
	if err := o.imageUser(ctx, &input); err != nil {
		return nil, nil, err
	}
	cfg, err := criconfig.Container(input)
	if err != nil {
		return nil, nil, err
	}
	sandbox, _, err := o.sandboxConfig(pod, in.Sandboxes[i].Attempt, users)
	return cfg, sandbox, err
}

// plugged returns what device plugins and the drivers of resource claims want a container to have.
func (o *Ops) plugged(ctx context.Context, in *podplan.Input, spec *v1.Container) (p criconfig.Plugged, err error) {
	if v := in.Record.Verdict; v != nil && len(v.Devices[spec.Name]) > 0 {
		if p, err = o.Plugged(ctx, v.Devices[spec.Name]); err != nil {
			return p, err
		}
	}
	cdi, err := o.Claims.Container(in.Pod, spec)
	p.CDI = append(p.CDI, cdi...)
	return p, err
}

// mountsAndUsers returns a container's mounts and its pod's user namespace.
func (o *Ops) mountsAndUsers(ctx context.Context, op podplan.Op, in *podplan.Input, mi volume.ContainerInput) ([]*runtimeapi.Mount, *runtimeapi.UserNamespace, error) {
	mi.Pod, mi.Attempt, mi.Images = in.Pod, op.Attempt, map[string]string{}
	for i := range in.Pod.Spec.Volumes {
		if v := &in.Pod.Spec.Volumes[i]; v.Image != nil {
			mi.Images[v.Name] = in.Images[podplan.VolumeImage(v.Name)].Ref
		}
	}
	ask := criconfig.OwnUsers(in.Pod)
	for i := range mi.Container.VolumeMounts {
		ask = ask || mi.Container.VolumeMounts[i].RecursiveReadOnly != nil
	}
	if !ask {
		mounts, err := o.Volumes.ContainerMounts(ctx, mi)
		return mounts, nil, err
	}
	handler, err := o.runtimeHandler(ctx, in.Pod)
	if err != nil {
		return nil, nil, err
	}
	features, err := o.features(ctx, handler)
	if err != nil {
		return nil, nil, err
	}
	mi.RecursiveReadOnly = features.GetRecursiveReadOnlyMounts()
	users, err := o.userNamespace(ctx, in.Pod, handler)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := o.Volumes.ContainerMounts(ctx, mi)
	return mounts, users, err
}

// target returns the ID of the container whose processes an ephemeral container sees.
func (o *Ops) target(in *podplan.Input, name string) string {
	target := criconfig.TargetContainer(in.Pod, name)
	for i := range in.Containers {
		if c := &in.Containers[i]; target != "" && c.Name == target && c.State == podplan.Running {
			return c.ID
		}
	}
	return ""
}

// imageUser looks up the user that the image runs as.
func (o *Ops) imageUser(ctx context.Context, in *criconfig.ContainerInput) error {
	resp, err := o.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: in.ImageRef}, false)
	if err != nil {
		return fmt.Errorf("image %s: %w", in.ImageRef, err)
	}
	if resp.Image == nil {
		return fmt.Errorf("image %s %w", in.ImageRef, errImageGone)
	}
	if u := resp.Image.Uid; u != nil {
		in.ImageUID = &u.Value
	} else {
		in.ImageUser = resp.Image.Username
	}
	return nil
}

func (o *Ops) environment(ctx context.Context, in *podplan.Input, spec *v1.Container, ips []string) ([]criconfig.Env, error) {
	services, err := o.Services(ctx, in.Pod)
	if err != nil {
		return nil, err
	}
	env, skipped, err := criconfig.Environment(criconfig.EnvInput{
		Pod: in.Pod, Container: spec, Objects: o.Objects.For(ctx), Services: services, PodIPs: ips, HostIPs: in.Node.HostIPs,
		NodeName: o.NodeName, Allocatable: o.Node().Allocatable, FileKey: o.fileKey(in.Pod),
	})
	if errors.Is(err, objectcache.ErrNoClient) {
		return nil, fmt.Errorf("container %s: %w", spec.Name, err)
	}
	if len(skipped) > 0 {
		o.event(in.Pod, v1.EventTypeWarning, "InvalidEnvironmentVariableNames",
			"Keys %v were skipped since they are considered invalid environment variable names.", skipped)
	}
	return env, err
}

// hosts returns the pod's /etc/hosts, nil while it has no address.
func (o *Ops) hosts(pod *v1.Pod, ips []string) ([]byte, error) {
	if len(ips) == 0 {
		return nil, nil
	}
	hostname, domain, err := criconfig.Hostname(pod, o.ClusterDomain)
	if err != nil {
		return nil, err
	}
	var node []byte
	if pod.Spec.HostNetwork {
		if node, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return criconfig.Hosts(pod, ips, hostname, domain, node), nil
}

func (o *Ops) startContainer(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	if err := o.Runtime.StartContainer(ctx, op.ID); err != nil {
		if ctx.Err() == nil {
			o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "Failed", "Error: %s", detail(err))
		}
		return podplan.Result{Err: err, Reason: podplan.ReasonRunContainerError, Message: detail(err)}
	}
	metrics.StartedContainers.WithLabelValues(containerType(in.Pod, op.Name)).Inc()
	o.containerEvent(in.Pod, op.Name, v1.EventTypeNormal, "Started", "Container started")
	o.addLogLink(ctx, in, op)
	return podplan.Result{}
}

func containerType(pod *v1.Pod, name string) string {
	switch {
	case pods.IsInit(pod, name):
		return "init_container"
	case pods.IsEphemeral(pod, name):
		return "ephemeral_container"
	default:
		return "container"
	}
}

// removeContainer removes a dead instance and its log.
func (o *Ops) removeContainer(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	if err := o.Runtime.RemoveContainer(ctx, op.ID); err != nil && !notFound(err) {
		return failed(fmt.Errorf("remove container %s: %w", op.ID, err))
	}
	o.removeLogLink(in.Pod, op.Name, op.ID)
	for i := range in.Containers {
		c := &in.Containers[i]
		if c.ID != op.ID {
			continue
		}
		if err := removeLog(filepath.Join(criconfig.LogDir(o.PodLogs, in.Pod), criconfig.LogPath(c.Name, c.Attempt))); err != nil {
			return failed(err)
		}
		_ = os.Remove(o.Dirs.MessageFile(in.Pod.UID, c.Name, c.Attempt))
	}
	return podplan.Result{}
}

// removeLog removes a log and its rotated files, including those that are renamed meanwhile because
// they are being compressed.
func removeLog(path string) error {
	for range 2 {
		files, err := filepath.Glob(path + "*")
		if err != nil {
			return err
		}
		for _, f := range files {
			_ = os.Remove(f)
		}
	}
	return nil
}
