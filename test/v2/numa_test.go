package v2

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	upstream "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/numa"
)

// placed returns on which CPUs and with the memory of which NUMA nodes a container's first process may run.
func placed(t *testing.T, rt internalapi.RuntimeService, pod string) string {
	t.Helper()
	st := await(t, rt, pod, runtimeapi.ContainerState_CONTAINER_RUNNING)
	out, errOut, err := rt.ExecSync(t.Context(), st.Id, []string{"cat", "/proc/1/status"}, patience)
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	var is []string
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(line, ":")
		if name == "Cpus_allowed_list" || name == "Mems_allowed_list" {
			is = append(is, strings.TrimSpace(value))
		}
	}
	return strings.Join(is, " of ")
}

// TestAlignedWithNUMANodes: containers have CPUs and memory of one node, the others share what is left, and a pod whose
// CPUs are here and whose memory is there is refused.
func TestAlignedWithNUMANodes(t *testing.T) {
	machine, err := numa.Read("/sys", 0)
	if err != nil {
		t.Fatal(err)
	}
	topology, err := cpus.Read("/sys")
	if err != nil {
		t.Fatal(err)
	}
	if machine.Nodes.String() != "0-1" || len(topology) != 4 || topology[1].NUMA != 0 || topology[2].NUMA != 1 {
		t.Skipf("needs two NUMA nodes with two CPUs each: make test-v2 (here %s, %v)", machine.Nodes, topology)
	}
	const idle = "trap : TERM; while :; do sleep 1000; done"
	asks := func(name, cpu, memory string) *v1.Pod {
		p := pod(name, memory, memory, idle)
		for _, list := range []v1.ResourceList{p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits} {
			list[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		return p
	}
	// Node 1 has most of its memory given away, and a free CPU; node 0 has the memory, and none.
	some := fmt.Sprint(machine.Memory[1][v1.ResourceMemory] / 2)
	pods := []*v1.Pod{asks("first", "1", "64Mi"), asks("second", "1", some), asks("third", "1", some), pod("shares", "16Mi", "64Mi", idle)}
	for i, p := range pods { // decided in this order
		p.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(i-10) * time.Second))
	}
	rt, client := node(t, func(cfg *config.Config) {
		cfg.CPUManagerPolicy, cfg.ReservedSystemCPUs = cpus.Static, "0"
		cfg.MemoryManagerPolicy, cfg.TopologyManagerPolicy = upstream.StaticMemoryManagerPolicy, upstream.SingleNumaNodeTopologyManagerPolicy
		cfg.KubeReserved = map[string]string{"memory": "100Mi"}
		cfg.EvictionHard = map[string]string{"memory.available": "50Mi"}
		cfg.ReservedMemory = []upstream.MemoryReservation{
			{NumaNode: 0, Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Mi")}},
			{NumaNode: 1, Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("50Mi")}},
		}
	}, pods...)
	for name, want := range map[string]string{"first": "1 of 0", "second": "2 of 1", "shares": "0,3 of 0-1"} {
		if got := placed(t, rt, name); got != want {
			t.Errorf("%s runs on the CPUs %s, want %s", name, got, want)
		}
	}
	p, err := client.CoreV1().Pods("default").Get(t.Context(), "third", metav1.GetOptions{})
	if err != nil || p.Status.Phase != v1.PodFailed || p.Status.Reason != "TopologyAffinityError" {
		t.Errorf("third: %+v, %v", p.Status, err)
	}
}
