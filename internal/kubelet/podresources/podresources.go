// Package podresources tells monitoring agents on the node which devices each container has
// (k8s.io/kubelet/pkg/apis/podresources, v1 and v1alpha1), at a socket that only root can reach.
package podresources

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/agentsocket"
	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/dra"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Config is what the server tells of.
type Config struct {
	// Socket is where it listens.
	Socket string
	// Pods lists all pods.
	Pods func() []*podworker.Snapshot
	// Devices are those of device plugins, by resource.
	Devices func() map[string][]devices.Device
	// CPUs returns those that containers may have for themselves; nil: nobody has any.
	CPUs func() cpuset.CPUSet
	// Memory returns what each NUMA node may give; nil: memory is nobody's.
	Memory func() map[int]memory.Sizes
	// Claims returns what a container has by its pod's resource claims.
	Claims func(pod *v1.Pod, c *v1.Container) ([]dra.Given, error)
}

// Run serves until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	one := &server{cfg: cfg}
	return agentsocket.Serve(ctx, cfg.Socket, func(s *grpc.Server) {
		podresourcesapi.RegisterPodResourcesListerServer(s, one)
		v1alpha1.RegisterPodResourcesListerServer(s, alpha{server: one})
	})
}

type server struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	cfg Config
}

// List implements podresourcesapi.PodResourcesListerServer: it has the pods that hold resources of the node.
func (s *server) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	metrics.PodResources("list")
	near := s.nodes()
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, p := range s.holding() {
		out.PodResources = append(out.PodResources, s.of(p, near))
	}
	return out, nil
}

// holding returns the pods that hold resources of the node.
func (s *server) holding() []*podworker.Snapshot {
	return slices.DeleteFunc(slices.Clone(s.cfg.Pods()), func(p *podworker.Snapshot) bool { return !admission.Holds(p) })
}

// Get implements podresourcesapi.PodResourcesListerServer.
func (s *server) Get(_ context.Context, in *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	metrics.PodResources("get")
	for _, p := range s.cfg.Pods() {
		if p.Pod.Name == in.GetPodName() && p.Pod.Namespace == in.GetPodNamespace() && admission.Holds(p) {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: s.of(p, s.nodes())}, nil
		}
	}
	metrics.PodResourcesFailed()
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", in.GetPodName(), in.GetPodNamespace())
}

// GetAllocatableResources implements podresourcesapi.PodResourcesListerServer.
func (s *server) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	metrics.PodResources("get_allocatable")
	out := &podresourcesapi.AllocatableResourcesResponse{}
	if s.cfg.CPUs != nil {
		out.CpuIds = ids(s.cfg.CPUs())
	}
	if s.cfg.Memory != nil {
		all := s.cfg.Memory()
		for _, id := range slices.Sorted(maps.Keys(all)) {
			for _, name := range slices.Sorted(maps.Keys(all[id])) {
				if size := all[id][name]; size > 0 {
					out.Memory = append(out.Memory, block(string(name), size, numa.NodesOf(id)))
				}
			}
		}
	}
	for name, all := range s.cfg.Devices() {
		for _, d := range all {
			if d.Healthy {
				out.Devices = append(out.Devices, device(name, d.ID, d.Nodes))
			}
		}
	}
	return out, nil
}

func ids(set cpuset.CPUSet) (out []int64) {
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}

// near has the NUMA nodes of devices, by resource and ID.
type near map[string]map[string][]int64

func (s *server) nodes() near {
	out := near{}
	for name, all := range s.cfg.Devices() {
		out[name] = map[string][]int64{}
		for _, d := range all {
			out[name][d.ID] = d.Nodes
		}
	}
	return out
}

// of returns what a pod's containers have, but for init containers that end.
func (s *server) of(p *podworker.Snapshot, n near) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace}
	for c := range pods.Containers(&p.Pod.Spec) {
		if pods.IsInit(p.Pod, c.Name) && !pods.IsSidecar(c) {
			continue
		}
		has := n.container(c, p.Input.Record.Verdict.Devices[c.Name])
		has.DynamicResources = s.claimed(p.Pod, c)
		if set, err := cpuset.Parse(p.Input.Record.Verdict.CPUs[c.Name]); err == nil {
			has.CpuIds = ids(set)
		}
		for _, b := range p.Input.Record.Verdict.Memory[c.Name] {
			if nodes, err := numa.Parse(b.Nodes); err == nil && b.Size > 0 {
				has.Memory = append(has.Memory, block(b.Resource, b.Size, nodes))
			}
		}
		out.Containers = append(out.Containers, has)
	}
	return out
}

// claimed returns what a container has by resource claims; nothing before they are prepared, which whoever prepares them
// tells.
func (s *server) claimed(pod *v1.Pod, c *v1.Container) (out []*podresourcesapi.DynamicResource) {
	given, err := s.cfg.Claims(pod, c)
	if err != nil {
		return nil
	}
	for _, g := range given {
		r := &podresourcesapi.DynamicResource{ClaimName: g.Claim, ClaimNamespace: g.Namespace}
		for _, d := range g.Devices {
			one := &podresourcesapi.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Name}
			if d.Share != "" {
				one.ShareId = &d.Share
			}
			for _, id := range d.CDI {
				one.CdiDevices = append(one.CdiDevices, &podresourcesapi.CDIDevice{Name: id})
			}
			r.ClaimResources = append(r.ClaimResources, one)
		}
		out = append(out, r)
	}
	return out
}

func block(resource string, size uint64, nodes numa.Nodes) *podresourcesapi.ContainerMemory {
	out := &podresourcesapi.ContainerMemory{MemoryType: resource, Size: size, Topology: &podresourcesapi.TopologyInfo{}}
	for _, id := range nodes.IDs() {
		out.Topology.Nodes = append(out.Topology.Nodes, &podresourcesapi.NUMANode{ID: int64(id)})
	}
	return out
}

func (n near) container(c *v1.Container, grants []podplan.Grant) *podresourcesapi.ContainerResources {
	out := &podresourcesapi.ContainerResources{Name: c.Name}
	for _, g := range grants {
		for _, id := range slices.Sorted(slices.Values(g.IDs)) {
			out.Devices = append(out.Devices, device(g.Resource, id, n[g.Resource][id]))
		}
	}
	return out
}

func device(resource, id string, nodes []int64) *podresourcesapi.ContainerDevices {
	out := &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
	if len(nodes) > 0 {
		out.Topology = &podresourcesapi.TopologyInfo{}
		for _, n := range nodes {
			out.Topology.Nodes = append(out.Topology.Nodes, &podresourcesapi.NUMANode{ID: n})
		}
	}
	return out
}
