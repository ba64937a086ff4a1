package sandbox

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/inspect"
	"wherry.dev/internal/oci"
)

// Info returns what `crictl inspectp` shows in addition to the status.
func (b *Sandbox) Info(ctx context.Context) (map[string]string, error) {
	st := b.current()
	doc := map[string]any{
		"pid":                b.InitPID(),
		"processStatus":      string(st.Phase),
		"netNamespaceClosed": !b.Ready(),
		"image":              "", // there is no pause container
		"snapshotKey":        "",
		"snapshotter":        "",
		"runtimeHandler":     b.rec.Handler,
		"runtimeType":        "",
		"config":             b.Config,
		"runtimeSpec":        b.spec(),
		"cniResult":          cniResult(b, st.Network),
		"networkCheck":       b.checkNetwork(ctx),
		"cgroupParent":       b.CgroupParent(),
	}
	if r, err := b.env.Handlers.Get(b.rec.Handler); err == nil {
		doc["runtimeType"] = r.Type
	}
	return inspect.Pack("info", doc)
}

// checkNetwork returns what CNI's CHECK finds wrong with the sandbox's network.
func (b *Sandbox) checkNetwork(ctx context.Context) string {
	at := b.current().Network
	if at == nil || !b.Ready() {
		return ""
	}
	if err := b.env.Network.Check(ctx, b.Pod(), at.Network); err != nil {
		return err.Error()
	}
	return "ok"
}

// spec describes the sandbox's namespaces and settings as if it were a container.
func (b *Sandbox) spec() *specs.Spec {
	shared := b.Shared()
	spec := &specs.Spec{
		Version: oci.Version, Hostname: shared.Hostname, Annotations: b.Config.GetAnnotations(),
		Linux: &specs.Linux{
			CgroupsPath: b.CgroupParent(), Sysctl: b.Config.GetLinux().GetSysctls(),
			UIDMappings: shared.IDMapping, GIDMappings: shared.IDMapping,
		},
	}
	for _, t := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.UserNamespace, specs.PIDNamespace} {
		if path, ok := shared.Namespaces[t]; ok {
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
		}
	}
	return spec
}

// cniResult returns the pod's network in the form of containerd's CNI library.
func cniResult(b *Sandbox, at *cni.Attachment) any {
	if at == nil {
		return nil
	}
	var ips []map[string]string
	for _, ip := range at.IPs {
		ips = append(ips, map[string]string{"IP": ip.String()})
	}
	return map[string]any{
		"Interfaces": map[string]any{cni.IfName: map[string]any{"IPConfigs": ips, "Mac": at.MAC, "Sandbox": b.netnsPath()}},
		"Network":    at.Network, "HostInterface": at.Link,
	}
}
