package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/cpus"
)

// TestCPUsOfTheirOwn: a container that asks for whole CPUs has them for itself before it starts; the others move away, and
// back when it is gone. A kubelet that is started again keeps to that; one without the policy lets them all go.
func TestCPUsOfTheirOwn(t *testing.T) {
	machine, err := cpus.Read("/sys")
	if err != nil {
		t.Fatal(err)
	}
	if len(machine) < 2 {
		t.Skip("the machine has one CPU, which the system keeps")
	}
	c := newCluster(t)
	p := &parts{cluster: c, dir: filepath.Dir(c.data), apiPort: c.flags[3]}
	for _, d := range []string{c.data, c.run} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.apiserver()
	p.scheduler()
	p.runtime()
	numa, err := os.ReadFile("/sys/devices/system/node/online")
	if err != nil {
		t.Fatal(err)
	}
	policy := []string{"--cpu-manager-policy", "static", "--kube-reserved", "cpu=500m,memory=64Mi", "--topology-manager-policy", "restricted"}
	if strings.TrimSpace(string(numa)) == "0" { // reservations are by node
		policy = append(policy, "--memory-manager-policy", "Static", "--eviction-hard", "memory.available<64Mi", "--reserved-memory", "0:memory=128Mi")
	}
	stop := p.kubelet(policy...)
	p.controllers()
	c.until("the namespace has a service account", func() bool {
		_, err := c.try("kubectl", "get", "serviceaccount", "default")
		return err == nil
	})
	on := func(pod string) cpuset.CPUSet {
		t.Helper()
		var status string
		c.until("a kubelet that was just started serves", func() (ok bool) {
			status, err = c.try("kubectl", "exec", pod, "--", "cat", "/proc/1/status")
			return err == nil
		})
		for line := range strings.Lines(status) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				set, err := cpuset.Parse(strings.TrimSpace(list))
				if err != nil {
					t.Fatal(err)
				}
				return set
			}
		}
		t.Fatal("the kernel does not tell")
		return cpuset.CPUSet{}
	}
	c.create(busybox("shares"))
	c.await("shares", "ready", ready)
	all := on("shares")
	own := func(name string) *v1.Pod {
		return busybox(name, func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("32Mi")}
		})
	}
	c.create(own("alone"))
	c.await("alone", "ready", ready)
	mine, rest := on("alone"), on("shares")
	if mine.Size() != 1 || !mine.Intersection(rest).IsEmpty() || !mine.Union(rest).Equals(all) {
		t.Errorf("of the CPUs %s, the one has %s, the others %s", all, mine, rest)
	}
	c.create(busybox("later"))
	c.await("later", "ready", ready)
	if is := on("later"); !is.Equals(rest) {
		t.Errorf("one that came later is on %s, want %s", is, rest)
	}
	stop()
	stop = p.kubelet(policy...)
	c.create(own("again"))
	c.await("again", "told that there is no CPU", func(p *v1.Pod) bool { return p != nil && len(p.Status.Conditions) > 0 && p.Spec.NodeName == "" })
	if is := on("alone"); !is.Equals(mine) || !on("shares").Equals(rest) {
		t.Errorf("after a restart the one has %s, the others %s", is, on("shares"))
	}
	c.delete("alone")
	c.await("again", "ready", ready)
	if is := on("again"); !is.Equals(mine) {
		t.Errorf("the next one has %s, want %s", is, mine)
	}
	c.delete("later")
	stop()
	p.kubelet("--kube-reserved", "cpu=500m")
	c.until("all CPUs are everybody's", func() bool { return on("shares").Equals(all) && on("again").Equals(all) })
}
