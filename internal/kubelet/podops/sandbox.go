package podops

import (
	"context"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/safepath"
)

// runSandbox creates and starts the pod's sandbox.
func (o *Ops) runSandbox(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	if op.Attempt > 0 {
		o.event(in.Pod, v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	if err := o.Claims.Prepare(ctx, in.Pod); err != nil {
		if ctx.Err() == nil {
			o.event(in.Pod, v1.EventTypeWarning, podplan.ReasonPrepareClaims, "Failed to prepare dynamic resources: %v", err)
		}
		return podplan.Result{Err: err, Reason: podplan.ReasonPrepareClaims}
	}
	id, err := o.trySandbox(ctx, op, in)
	if err != nil && ctx.Err() == nil {
		o.event(in.Pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	}
	return podplan.Result{Err: err, Sandbox: id}
}

// unprepareClaims has drivers take back what they prepared for the pod.
func (o *Ops) unprepareClaims(ctx context.Context, in *podplan.Input) podplan.Result {
	err := o.Claims.Unprepare(ctx, in.Pod)
	if err != nil && ctx.Err() == nil {
		o.event(in.Pod, v1.EventTypeWarning, "FailedUnprepareDynamicResources", "Failed to unprepare dynamic resources: %v", err)
	}
	return failed(err)
}

func (o *Ops) trySandbox(ctx context.Context, op podplan.Op, in *podplan.Input) (string, error) {
	handler, err := o.runtimeHandler(ctx, in.Pod)
	if err != nil {
		return "", err
	}
	users, err := o.userNamespace(ctx, in.Pod, handler)
	if err != nil {
		return "", err
	}
	cfg, warnings, err := o.sandboxConfig(in.Pod, op.Attempt, users)
	if err != nil {
		return "", err
	}
	for _, w := range warnings {
		o.event(in.Pod, v1.EventTypeWarning, w.Reason, "%s", w.Message)
	}
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return "", fmt.Errorf("create pod log directory: %w", err)
	}
	return o.Runtime.RunPodSandbox(ctx, cfg, handler)
}

// sandboxConfig returns the configuration of the pod's sandbox, with warnings for events.
func (o *Ops) sandboxConfig(pod *v1.Pod, attempt uint32, users *runtimeapi.UserNamespace) (*runtimeapi.PodSandboxConfig, []criconfig.Warning, error) {
	var host []byte
	if o.ResolvConf != "" {
		var err error
		if host, err = safepath.ReadFile(o.ResolvConf, safepath.ConfigSize); err != nil && !os.IsNotExist(err) {
			return nil, nil, fmt.Errorf("resolvConf: %w", err)
		}
	}
	dns, warnings := criconfig.DNS(criconfig.DNSInput{
		Pod: pod, ClusterDNS: o.ClusterDNS, NoClusterDNS: o.NoClusterDNS, ClusterDomain: o.ClusterDomain, Host: host,
		NoHost: o.ResolvConf == "", NodeIPs: o.HostIPs,
	})
	cgroup := ""
	if o.Cgroups != nil {
		cgroup = o.Layout.Parent(pod)
	}
	cfg, err := criconfig.Sandbox(criconfig.SandboxInput{
		Pod: pod, Attempt: attempt, LogRoot: o.PodLogs, CgroupParent: cgroup, DNS: dns, ClusterDomain: o.ClusterDomain, Dirs: o.Dirs, UserNS: users, CFS: o.CFS, Sysctls: o.Sysctls,
	})
	return cfg, warnings, err
}

// runtimeHandler resolves the pod's RuntimeClass.
func (o *Ops) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if o.Client == nil {
		return "", fmt.Errorf("failed to get sandbox runtime: RuntimeClass %q cannot be looked up without an API server", *name)
	}
	rc, err := o.Client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get sandbox runtime: %w", err)
	}
	return rc.Handler, nil
}

// removeSandbox stops and removes a sandbox with all its containers.
func (o *Ops) removeSandbox(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	if err := o.Runtime.StopPodSandbox(ctx, op.ID); err != nil && !notFound(err) {
		return failed(fmt.Errorf("stop sandbox %s: %w", op.ID, err))
	}
	if err := o.Runtime.RemovePodSandbox(ctx, op.ID); err != nil && !notFound(err) {
		return failed(fmt.Errorf("remove sandbox %s: %w", op.ID, err))
	}
	for i := range in.Containers {
		if c := &in.Containers[i]; c.SandboxID == op.ID {
			o.removeLogLink(in.Pod, c.Name, c.ID)
		}
	}
	return podplan.Result{}
}
