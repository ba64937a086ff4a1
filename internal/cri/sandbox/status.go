package sandbox

import (
	"errors"
	"io/fs"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/metrics"
	"wherry.dev/internal/cri/stats"
)

// CRState returns CRI's word for its phase.
func (b *Sandbox) CRState() runtimeapi.PodSandboxState {
	if b.Ready() {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// Summary returns its item of a list.
func (b *Sandbox) Summary() *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: b.ID, Metadata: b.Config.GetMetadata(), State: b.CRState(), CreatedAt: b.rec.CreatedAt,
		Labels: b.Config.GetLabels(), Annotations: b.Config.GetAnnotations(), RuntimeHandler: b.rec.Handler,
	}
}

// Status returns its status, without its containers.
func (b *Sandbox) Status() *runtimeapi.PodSandboxStatus {
	status := b.current()
	st := &runtimeapi.PodSandboxStatus{
		Id: b.ID, Metadata: b.Config.GetMetadata(), State: b.CRState(), CreatedAt: b.rec.CreatedAt,
		Labels: b.Config.GetLabels(), Annotations: b.Config.GetAnnotations(), RuntimeHandler: b.rec.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	if at := status.Network; at != nil && status.Phase == phaseReady {
		for i, ip := range at.IPs {
			if i == 0 {
				st.Network.Ip = ip.String()
				continue
			}
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	return st
}

// Stats returns the usage of the pod, without that of its containers.
func (b *Sandbox) Stats() (*runtimeapi.PodSandboxStats, error) {
	linux := &runtimeapi.LinuxPodSandboxStats{}
	m, err := cgroup.ReadStats(b.CgroupParent())
	switch {
	case errors.Is(err, fs.ErrNotExist): // no container yet
	case err != nil:
		return nil, err
	default:
		linux.Cpu, linux.Memory, linux.Io = b.cpu.Usage(m), stats.Memory(m), stats.IO(m)
		linux.Process = &runtimeapi.ProcessUsage{Timestamp: m.Time.UnixNano(), ProcessCount: stats.Value(m.Pids)}
	}
	if b.Networks && b.Ready() {
		doc, err := b.netDev()
		if err != nil {
			return nil, err
		}
		linux.Network = stats.Network(doc, cni.IfName)
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: b.ID, Metadata: b.Config.GetMetadata(), Labels: b.Config.GetLabels(), Annotations: b.Config.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}

// Metrics returns the pod's own metrics, without those of its containers.
func (b *Sandbox) Metrics() ([]*runtimeapi.Metric, error) {
	m := b.Config.GetMetadata()
	netDev := ""
	if b.Networks {
		var err error
		if netDev, err = b.netDev(); err != nil {
			return nil, err
		}
	}
	l := metrics.Labels{Container: "POD", Cgroup: b.CgroupParent(), ID: b.ID, Namespace: m.GetNamespace(), Pod: m.GetName()}
	return metrics.OfPod(l, b.rec.CreatedAt, netDev), nil
}
