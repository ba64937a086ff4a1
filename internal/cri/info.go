package cri

import (
	"context"
	"encoding/json"
	"runtime"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/oci"
)

// The extra information in verbose statuses. The names are those of containerd and CRI-O, for
// which people have scripts: the PID, the network namespace's path, the spec.

// snapshotter is containerd's name for layers stacked by overlayfs.
const snapshotter = "overlayfs"

// info packs a document the way CRI wants it: as text in a map.
func info(key string, v any) (map[string]string, error) {
	doc, err := json.Marshal(v)
	return map[string]string{key: string(doc)}, err
}

// containerInfo returns what `crictl inspect` shows in addition to the status.
func (s *Server) containerInfo(c *container) (map[string]string, error) {
	return info("info", map[string]any{
		"sandboxID":   c.rec.SandboxID,
		"pid":         c.pid(),
		"removing":    false, // a container that is being removed no longer answers
		"snapshotter": snapshotter,
		"snapshotKey": c.id,
		"runtimeType": c.runtime.Type,
		"privileged":  c.config().GetLinux().GetSecurityContext().GetPrivileged(),
		"cgroup":      c.rec.Cgroup,
		"bundle":      c.bundle.Dir,
		"rootfs":      c.rootfs(),
		"config":      c.config(),
		"runtimeSpec": c.readSpec(),
	})
}

// pid returns the PID of the container's first process, or 0 if it has exited.
func (c *container) pid() int {
	st := c.current()
	if st.EndedAt != 0 {
		return 0
	}
	return st.PID
}

// sandboxInfo returns what `crictl inspectp` shows in addition to the status.
func (s *Server) sandboxInfo(ctx context.Context, b *sandbox) (map[string]string, error) {
	st := b.current()
	doc := map[string]any{
		"pid":                s.initPID(b),
		"processStatus":      string(st.Phase),
		"netNamespaceClosed": !b.ready(),
		"image":              "", // there is no pause container
		"snapshotKey":        "",
		"snapshotter":        "",
		"runtimeHandler":     b.rec.Handler,
		"runtimeType":        "",
		"config":             b.config,
		"runtimeSpec":        s.sandboxSpec(b),
		"cniResult":          cniResult(b, st.Network),
		"networkCheck":       s.checkNetwork(ctx, b),
		"cgroupParent":       s.cgroupParent(b),
	}
	if r, err := s.handler(b.rec.Handler); err == nil {
		doc["runtimeType"] = r.Type
	}
	return info("info", doc)
}

// checkNetwork returns what CNI's CHECK finds wrong with the sandbox's network.
func (s *Server) checkNetwork(ctx context.Context, b *sandbox) string {
	at := b.current().Network
	if at == nil || !b.ready() {
		return ""
	}
	if err := s.network.Check(ctx, b.pod(), at.Network); err != nil {
		return err.Error()
	}
	return "ok"
}

// initPID returns the PID of the pod's init, or 0 in pods that share no PID namespace.
func (s *Server) initPID(b *sandbox) int {
	if !b.ready() || !b.current().PIDNS {
		return 0
	}
	pid, err := oci.ReadPID(s.initBundle(b).PIDFile())
	if err != nil {
		return 0 // it has just been stopped
	}
	return pid
}

// sandboxSpec describes the sandbox's namespaces and settings as if it were a container.
func (s *Server) sandboxSpec(b *sandbox) *specs.Spec {
	shared := b.shared()
	spec := &specs.Spec{
		Version: oci.Version, Hostname: shared.Hostname, Annotations: b.config.GetAnnotations(),
		Linux: &specs.Linux{
			CgroupsPath: s.cgroupParent(b), Sysctl: b.config.GetLinux().GetSysctls(),
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
func cniResult(b *sandbox, at *cni.Attachment) any {
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

// statusInfo returns what `crictl info` shows in addition to the status.
func (s *Server) statusInfo(network error) (map[string]string, error) {
	runtimes := map[string]any{}
	for name, r := range s.runtimes {
		runtimes[name] = map[string]any{"runtimeType": r.Type, "runtimePath": r.Path, "options": r.Options}
	}
	all, err := info("config", map[string]any{
		"containerd": map[string]any{"snapshotter": snapshotter, "defaultRuntimeName": s.cfg.DefaultRuntime, "runtimes": runtimes},
		"cni":        map[string]any{"binDirs": s.cfg.CNIBinDirs, "confDir": s.cfg.CNIConfDir},
		"rootDir":    s.cfg.Root, "stateDir": s.cfg.State, "imageDir": s.images.Dir(), "instance": s.cfg.InstanceID, "conmon": s.cfg.Conmon,
		"podCIDR": s.cfg.PodCIDR, "bridge": s.cfg.Bridge, "streamAddress": s.cfg.StreamAddress,
		"cdiSpecDirs": s.cfg.CDISpecDirs, "defaultUlimits": s.cfg.DefaultUlimits, "capabilities": s.host.Capabilities,
	})
	all["golang"], all["lastCNILoadStatus"] = `"`+runtime.Version()+`"`, `"OK"`
	if network != nil {
		doc, merr := json.Marshal(network.Error())
		if merr != nil {
			return nil, merr
		}
		all["lastCNILoadStatus"] = string(doc)
	}
	return all, err
}
