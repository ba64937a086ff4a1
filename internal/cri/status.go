package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/inspect"
	"wherry.dev/internal/record"
)

const (
	runtimeName       = "wherry"
	runtimeAPIVersion = "v1"
	kubeAPIVersion    = "0.1.0" // of the kubelet's runtime API, frozen long ago
)

// Version returns the runtime's name and version.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: kubeAPIVersion, RuntimeName: runtimeName, RuntimeVersion: s.cfg.Version, RuntimeApiVersion: runtimeAPIVersion,
	}, nil
}

// Status reports whether containers can run and pods can be connected.
func (s *Server) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	down := s.network.Status(ctx)
	if down != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", down.Error()
	}
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, network,
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true, UserNamespacesHostNetwork: true},
	}
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(s.handlers.all))...) {
		r, err := s.handlers.Get(name)
		if err != nil {
			return nil, err
		}
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &runtimeapi.RuntimeHandler{
			Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: s.host.RecursiveReadOnly && r.Features.RecursiveReadOnly,
				UserNamespaces:          r.Features.UserNamespaces && s.translates(),
			},
		})
	}
	if !req.GetVerbose() {
		return resp, nil
	}
	var err error
	resp.Info, err = s.statusInfo(down)
	return resp, err
}

// statusInfo returns what `crictl info` shows in addition to the status.
func (s *Server) statusInfo(network error) (map[string]string, error) {
	runtimes := map[string]any{}
	for name, r := range s.handlers.all {
		runtimes[name] = map[string]any{"runtimeType": r.Type, "runtimePath": r.Path, "options": r.Options}
	}
	all, err := inspect.Pack("config", map[string]any{
		"containerd": map[string]any{"snapshotter": inspect.Snapshotter, "defaultRuntimeName": s.cfg.DefaultRuntime, "runtimes": runtimes},
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

// RuntimeConfig returns the cgroup driver that the kubelet must use.
func (s *Server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

// UpdateRuntimeConfig takes the node's range of addresses, if the runtime was started to await it (Config.AwaitPodCIDR). A
// CNI network has addresses of its own.
func (s *Server) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	text := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if text == "" || !s.cfg.AwaitPodCIDR {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	var subnets []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, crierror.Invalid("pod_cidr %q: %v", text, err)
		}
		subnets = append(subnets, p.Masked())
	}
	// The record comes first: after a crash the pods' addresses are those that it tells.
	if err := record.Write(s.cfg.podNetworks(), 1, subnets); err != nil {
		return nil, fmt.Errorf("record the node's range of addresses: %w", err)
	}
	if err := s.network.Give(ctx, subnets); err != nil {
		return nil, fmt.Errorf("connect pods to %s: %w", text, err)
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// CheckpointContainer needs CRIU, which is not supported.
func (s *Server) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, crierror.Unimplemented("checkpointing a container")
}

// CheckpointPod needs CRIU, which is not supported.
func (s *Server) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, crierror.Unimplemented("checkpointing a pod")
}

// RestorePod needs CRIU, which is not supported.
func (s *Server) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, crierror.Unimplemented("restoring a pod")
}
