package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/nodestatus"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/record"
)

// buildCPUs decides which CPUs containers may have for themselves: none, by default.
func (k *Kubelet) buildCPUs() (err error) {
	k.keeper = cpus.NewKeeper()
	k.keeper.Runtime = k.deps.Runtime
	if k.cfg.CPUManagerPolicy != cpus.Static {
		return nil
	}
	topology, err := usable()
	if err != nil {
		return err
	}
	reserved, err := k.cfg.Reserved(0, 0)
	if err != nil {
		return err
	}
	set, err := cpuset.Parse(k.cfg.ReservedSystemCPUs)
	if err != nil {
		return err
	}
	k.cpus, err = cpus.New(cpus.Config{
		Policy: k.cfg.CPUManagerPolicy, Options: k.cfg.CPUManagerPolicyOptions, Alpha: k.cfg.FeatureGates[cpus.AlphaOptions],
		Topology: topology, Reserved: reserved.Cpu().MilliValue(), ReservedCPUs: set, NUMAPolicy: k.cfg.TopologyManagerPolicy,
	})
	k.keeper.Want = k.cpusOfContainers
	return err
}

// buildNUMA decides which memory containers get, and whether what pods get is aligned with NUMA nodes: neither, by default.
// It returns the machine's nodes if they matter.
func (k *Kubelet) buildNUMA() (numa.Nodes, error) {
	if k.cfg.MemoryManagerPolicy == kubeletconfig.NoneMemoryManagerPolicy && k.cfg.TopologyManagerPolicy == kubeletconfig.NoneTopologyManagerPolicy {
		return 0, nil
	}
	size, _, err := nodestatus.Capacity(k.cfg.RootDir)
	if err != nil {
		return 0, err
	}
	machine, err := numa.Read("/sys", uint64(size))
	if err != nil {
		return 0, err
	}
	reserved, err := k.cfg.Reserved(size, 0)
	if err != nil {
		return 0, err
	}
	k.memory, err = memory.New(memory.Config{
		Policy: k.cfg.MemoryManagerPolicy, Machine: machine, Reserved: k.cfg.ReservedMemory, Total: reserved,
	})
	if err != nil {
		return 0, err
	}
	k.numa, err = numa.New(numa.Config{
		Policy: k.cfg.TopologyManagerPolicy, Scope: k.cfg.TopologyManagerScope, Options: k.cfg.TopologyManagerPolicyOptions,
		Nodes: machine.Nodes, Distances: machine.Distances,
	})
	return machine.Nodes, err
}

// usable returns the CPUs that this process may use.
func usable() (cpus.Topology, error) {
	topology, err := cpus.Read("/sys")
	if err != nil {
		return nil, err
	}
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		return nil, fmt.Errorf("CPU topology: %w", err)
	}
	var ids []int
	for _, c := range topology {
		if mine.IsSet(c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return topology.Only(cpuset.New(ids...)), nil
}

// cpusOfContainers returns on which CPUs each running container may run.
func (k *Kubelet) cpusOfContainers() map[string]string {
	shared := k.cpus.Shared(k.admission.HeldCPUs()).String()
	out := map[string]string{}
	for _, s := range k.table.List() {
		var own podplan.CPUs
		if v := s.Input.Record.Verdict; v != nil {
			own = v.CPUs
		}
		for i := range s.Input.Containers {
			if c := &s.Input.Containers[i]; c.State == podplan.Running {
				out[c.ID] = cmp.Or(own[c.Name], shared)
			}
		}
	}
	return out
}

// cpusOf returns on which CPUs a container may run that is about to be created. Those that it has for itself are
// free then.
func (k *Kubelet) cpusOf(ctx context.Context, own string) (string, error) {
	switch {
	case k.cpus == nil:
		return "", nil
	case own == "":
		return k.cpus.Shared(k.admission.HeldCPUs()).String(), nil
	}
	if err := k.keeper.Tell(ctx); err != nil {
		return "", fmt.Errorf("free the CPUs %s: %w", own, err)
	}
	return own, nil
}

// observed waits until all pods have been looked at that are there now: before, nobody knows what runs. It returns false if
// ctx ends first.
func (k *Kubelet) observed(ctx context.Context) bool {
	for _, s := range k.table.List() {
		for s.At.IsZero() {
			select {
			case <-s.Superseded:
			case <-ctx.Done():
				return false
			}
			now, ok := k.table.Get(s.Pod.UID)
			if !ok {
				break // it has gone
			}
			s = &now
		}
	}
	return ctx.Err() == nil
}

// keepCPUs keeps running containers on their CPUs. A file says that they may have been told: without the policy they are
// let go once.
func (k *Kubelet) keepCPUs(ctx context.Context) error {
	if !k.observed(ctx) {
		return nil
	}
	mark := filepath.Join(k.cfg.RootDir, "cpus_static")
	if k.cpus != nil {
		if err := record.WriteFile(mark, nil, 0o600); err != nil {
			return err
		}
		return k.keeper.Run(ctx)
	}
	if _, err := os.Stat(mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	topology, err := usable()
	if err != nil {
		return err
	}
	all := topology.All().String()
	k.keeper.Want = func() map[string]string {
		out := map[string]string{}
		for _, s := range k.table.List() {
			for i := range s.Input.Containers {
				if c := &s.Input.Containers[i]; c.State == podplan.Running {
					out[c.ID] = all
				}
			}
		}
		return out
	}
	if err := k.keeper.Tell(ctx); err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Containers stay on the CPUs that they had under the CPU manager's policy static, until the kubelet is started again")
		}
		return nil
	}
	return record.Remove(mark)
}
