package podresources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/dra"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/test/agents"
)

const gpu = "example.com/gpu"

// snapshot is a pod with an init container, a sidecar and a container, of which each has a device.
func snapshot(name string, v *podplan.Verdict) *podworker.Snapshot {
	p := &v1.Pod{}
	p.Name, p.Namespace = name, "ns"
	p.Spec.InitContainers = []v1.Container{{Name: "i"}, {Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	s := &podworker.Snapshot{Pod: p}
	s.Input.Pod, s.Input.Record.Verdict = p, v
	return s
}

func serve(t *testing.T, cfg Config) (podresourcesapi.PodResourcesListerClient, v1alpha1.PodResourcesListerClient) {
	t.Helper()
	conn := agents.Dial(t, func(ctx context.Context, socket string) error {
		cfg.Socket = socket
		return Run(ctx, cfg)
	})
	return podresourcesapi.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn)
}

func says(p *podresourcesapi.PodResources) string {
	var out []string
	for _, c := range p.GetContainers() {
		var of []string
		for _, d := range c.GetDevices() {
			of = append(of, fmt.Sprintf("%s%v%d", d.GetResourceName(), d.GetDeviceIds(), len(d.GetTopology().GetNodes())))
		}
		for _, r := range c.GetDynamicResources() {
			for _, d := range r.GetClaimResources() {
				of = append(of, fmt.Sprintf("%s/%s=%s/%s/%s%v", r.GetClaimNamespace(), r.GetClaimName(), d.GetDriverName(), d.GetPoolName(), d.GetDeviceName(), d.GetCdiDevices()))
			}
		}
		for _, m := range c.GetMemory() {
			of = append(of, fmt.Sprintf("%s=%d of%v", m.GetMemoryType(), m.GetSize(), m.GetTopology().GetNodes()))
		}
		out = append(out, c.GetName()+":"+strings.Join(of, ","))
	}
	return p.GetNamespace() + "/" + p.GetName() + " " + strings.Join(out, " ")
}

func TestWhatPodsHave(t *testing.T) {
	given := podplan.Devices{"i": {{Resource: gpu, IDs: []string{"a"}}}, "s": {{Resource: gpu, IDs: []string{"b"}}}, "c": {{Resource: gpu, IDs: []string{"d", "a"}}}}
	ended := snapshot("ended", &podplan.Verdict{Admitted: true, Devices: given})
	ended.At, ended.Input.Record.Ending = time.Now(), &podplan.Ending{Phase: v1.PodSucceeded}
	client, older := serve(t, Config{
		Pods: func() []*podworker.Snapshot {
			return []*podworker.Snapshot{snapshot("new", nil), snapshot("refused", &podplan.Verdict{Reason: "OutOfcpu"}), ended, snapshot("p", &podplan.Verdict{Admitted: true, Devices: given, Memory: podplan.Memory{"c": {{Resource: "memory", Nodes: "0-1", Size: 64}}}})}
		},
		Devices: func() map[string][]devices.Device {
			return map[string][]devices.Device{gpu: {{ID: "a", Healthy: true, Nodes: []int64{0, 1}}, {ID: "b"}, {ID: "d", Healthy: true}}}
		},
		Memory: func() map[int]memory.Sizes {
			return map[int]memory.Sizes{0: {"memory": 7, "hugepages-2Mi": 0}, 1: {"memory": 9}}
		},
		Claims: func(_ *v1.Pod, c *v1.Container) ([]dra.Given, error) {
			if c.Name == "s" {
				return nil, errors.New("resource claim x is not prepared")
			}
			return []dra.Given{{Namespace: "ns", Claim: "x", Devices: []dra.GivenDevice{{Driver: "d", Device: dra.Device{Pool: "p", Name: "one", CDI: []string{"d/k=1"}}}}}}, nil
		},
	})
	const want = "ns/p s:example.com/gpu[b]0 c:example.com/gpu[a]2,example.com/gpu[d]0,ns/x=d/p/one[name:\"d/k=1\"],memory=64 of[ ID:1]"
	list, err := client.List(t.Context(), &podresourcesapi.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.PodResources) != 1 || says(list.PodResources[0]) != want {
		t.Errorf("%v, %v; want %s", list, err, want)
	}
	old, err := older.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if got := strings.Join(strings.Fields(old.String()), " "); err != nil || got != `pod_resources:{name:"p" namespace:"ns" containers:{name:"c" devices:{resource_name:"example.com/gpu" device_ids:"a" device_ids:"d"}}}` {
		t.Errorf("v1alpha1: %s, %v", got, err)
	}
	one, err := client.Get(t.Context(), &podresourcesapi.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"})
	if err != nil || says(one.PodResources) != want {
		t.Errorf("%v, %v", one, err)
	}
	for _, name := range []string{"refused", "nobody"} {
		_, err := client.Get(t.Context(), &podresourcesapi.GetPodResourcesRequest{PodName: name, PodNamespace: "ns"})
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "pod "+name+" in namespace ns not found") {
			t.Error(err)
		}
	}
	all, err := client.GetAllocatableResources(t.Context(), &podresourcesapi.AllocatableResourcesRequest{})
	if err != nil || len(all.Devices) != 2 || len(all.Memory) != 2 || all.Memory[1].Size != 9 || all.Memory[1].Topology.Nodes[0].ID != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
