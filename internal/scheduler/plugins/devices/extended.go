package devices

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
)

// Extended resources that stand for the devices of a class (KEP-5004): example.com/gpu: 2 in a container is a request
// for two devices, on nodes that have no such resource of a device plugin.

// extended is what the containers of a pod ask of extended resources that are backed by classes. It is decided once
// for an attempt: classes may change meanwhile, and NodeResourcesFit must leave to us what we take, and nothing else.
type extended struct {
	pod *v1.Pod
	// classes has the class that each of the resources meant at the beginning of the attempt.
	classes map[v1.ResourceName]string
}

// ExtendedResources returns the resources that containers of the pod ask for and that a class could back, in order.
// Those of the pod's overhead are not among them, as there is no container to give the devices to.
func ExtendedResources(pod *v1.Pod) []v1.ResourceName {
	var out []v1.ResourceName
	for _, c := range containers(pod) {
		for name, q := range c.Resources.Requests {
			if _, overhead := pod.Spec.Overhead[name]; pods.MayBeDevices(name) && q.Sign() > 0 && !overhead && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// containers returns the init containers, and then the others.
func containers(pod *v1.Pod) []*v1.Container {
	out := make([]*v1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// backed returns what the pod asks of resources that are backed by classes now; nil for nothing.
func backed(pod *v1.Pod, all fwk.DeviceClassResolver) *extended {
	e := &extended{pod: pod, classes: map[v1.ResourceName]string{}}
	for _, name := range ExtendedResources(pod) {
		if class := all.GetDeviceClass(name); class != nil {
			e.classes[name] = class.Name
		}
	}
	if len(e.classes) == 0 {
		return nil
	}
	return e
}

// on returns the resources, in order, for which the pod needs devices on a node: those of which the node has none to
// offer itself. e may be nil.
func (e *extended) on(node fwk.NodeInfo) []v1.ResourceName {
	if e == nil {
		return nil
	}
	has := node.GetAllocatable().GetScalarResources()
	out := slices.DeleteFunc(slices.Collect(maps.Keys(e.classes)), func(name v1.ResourceName) bool { return has[name] > 0 })
	slices.Sort(out)
	return out
}

const backedKey fwk.StateKey = "DynamicResources/extended"

// Clone returns what does not change.
func (e *extended) Clone() fwk.StateData { return e }

// Backed reports whether DynamicResources sees to a resource for the pod of this cycle, on nodes that have none of it.
func Backed(cycle fwk.CycleState, name v1.ResourceName) bool {
	e, st := framework.ReadState[*extended](cycle, backedKey)
	return st.IsSuccess() && e.classes[name] != ""
}

// need is what the claim has to ask for that stands for extended resources.
type need struct {
	requests []resourcev1.DeviceRequest
	mappings []v1.ContainerExtendedResourceRequest
}

// needs returns what the claim has to ask for if these resources are to come from devices. It fails if that is more
// than a claim can have.
//
// Containers that run side by side have a request each. Init containers come one after the other, and use the devices
// of containers that start after them; what the neediest one still lacks is one more request, for all of them.
func (e *extended) needs(resources []v1.ResourceName) (*need, error) {
	n := &need{}
	total := int64(0)
	for _, name := range resources {
		for _, r := range n.add(e.pod, name, e.classes[name]) {
			if r.Exactly.Count > resourcev1.AllocationResultsMaxSize-total {
				return nil, fmt.Errorf("extended resources need more than %d devices", resourcev1.AllocationResultsMaxSize)
			}
			total += r.Exactly.Count
			n.requests = append(n.requests, r)
		}
	}
	slices.SortFunc(n.requests, func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return n, nil
}

// add adds who uses which request for one of the resources, and returns these requests.
func (n *need) add(pod *v1.Pod, resource v1.ResourceName, class string) []resourcev1.DeviceRequest {
	all := containers(pod)
	stays := func(i int) bool { return i >= len(pod.Spec.InitContainers) || pods.IsSidecar(all[i]) }
	uses := func(i int, request string) {
		n.mappings = append(n.mappings, v1.ContainerExtendedResourceRequest{
			ContainerName: all[i].Name, ResourceName: string(resource), RequestName: request,
		})
	}
	var requests []resourcev1.DeviceRequest
	byContainer := make([]*resourcev1.ExactDeviceRequest, len(all))
	for i, c := range all {
		if count := amount(c, resource); count > 0 && stays(i) {
			name := requestName(i, c, resource)
			requests = append(requests, exactly(name, class, count))
			byContainer[i] = requests[len(requests)-1].Exactly
			uses(i, name)
		}
	}
	var extra *resourcev1.DeviceRequest
	var forExtra []int // the mappings that name it, once it is known
	for i := range pod.Spec.InitContainers {
		lacks := amount(all[i], resource)
		if lacks == 0 || stays(i) {
			continue
		}
		for j := i; j < len(all) && lacks > 0; j++ {
			if later := byContainer[j]; later != nil {
				uses(i, requestName(j, all[j], resource))
				lacks -= min(lacks, later.Count)
			}
		}
		if lacks == 0 {
			continue
		}
		if extra == nil || extra.Exactly.Count < lacks {
			extra = new(exactly(requestName(i, all[i], resource), class, lacks))
		}
		uses(i, "")
		forExtra = append(forExtra, len(n.mappings)-1)
	}
	if extra != nil {
		requests = append(requests, *extra)
	}
	for _, m := range forExtra {
		n.mappings[m].RequestName = extra.Name
	}
	return requests
}

// amount returns how much a container asks for. Devices are whole: half of one is one. More than a claim can have is
// not told apart: a quantity may be larger than its value can be.
func amount(c *v1.Container, resource v1.ResourceName) int64 {
	const tooMany = resourcev1.AllocationResultsMaxSize + 1
	q := c.Resources.Requests[resource]
	if q.CmpInt64(tooMany) >= 0 {
		return tooMany
	}
	return max(0, q.Value())
}

// requestName names a request after the container, by its number among all of them, and after the resource, by its
// number among those of the container, as upstream does.
func requestName(i int, c *v1.Container, resource v1.ResourceName) string {
	names := slices.Sorted(maps.Keys(c.Resources.Requests))
	return fmt.Sprintf("container-%d-request-%d", i, slices.Index(names, resource))
}

func exactly(name, class string, count int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: name, Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}
}
