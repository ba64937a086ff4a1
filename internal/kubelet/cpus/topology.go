// Package cpus gives containers CPUs of their own (the CPU manager's policy static): those of Guaranteed pods that ask for
// whole CPUs. All others share the rest.
//
// Which CPUs a container gets is decided when its pod is admitted (choose.go), and is in the pod's record: what is free
// is what no record of a pod that may still run names. What is shared follows from the records, too; running containers
// get it as soon as it changes (keeper.go). There is no state file, and nothing is looked at again and again.
package cpus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/numa"
)

// CPU is a logical CPU and where it is. Core is unique on the machine. Cache is the one of the last level that it shares
// with other cores; the socket if it shares none.
type CPU struct{ ID, Core, Socket, NUMA, Cache int }

// Topology has the CPUs of a machine that are online, by ID.
type Topology []CPU

// Read returns the topology that a sysfs tells; root is /sys but in tests.
func Read(root string) (Topology, error) {
	online, err := readSet(filepath.Join(root, "devices/system/cpu/online"))
	if err != nil {
		return nil, fmt.Errorf("CPU topology: %w", err)
	}
	nodeOf, err := nodes(root)
	if err != nil {
		return nil, fmt.Errorf("CPU topology: %w", err)
	}
	type place struct{ socket, die, core int }
	cores := map[place]int{}
	var out Topology
	for _, id := range online.List() {
		dir := filepath.Join(root, "devices/system/cpu", "cpu"+strconv.Itoa(id), "topology")
		socket, err := readInt(filepath.Join(dir, "physical_package_id"))
		core, err2 := readInt(filepath.Join(dir, "core_id"))
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("CPU topology: %w", err)
		}
		die, err := readInt(filepath.Join(dir, "die_id"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // older kernels do not tell
			return nil, fmt.Errorf("CPU topology: %w", err)
		}
		at := place{max(0, socket), max(0, die), core} // some virtual machines have a socket -1
		cache, err := readInt(filepath.Join(root, "devices/system/cpu", "cpu"+strconv.Itoa(id), "cache/index3/id"))
		if errors.Is(err, fs.ErrNotExist) {
			cache, err = at.socket, nil
		}
		if err != nil {
			return nil, fmt.Errorf("CPU topology: %w", err)
		}
		if _, ok := cores[at]; !ok {
			cores[at] = len(cores)
		}
		out = append(out, CPU{ID: id, Core: cores[at], Socket: at.socket, NUMA: nodeOf[id], Cache: cache})
	}
	if len(out) == 0 {
		return nil, errors.New("CPU topology: no CPU is online")
	}
	return out, nil
}

// nodes returns the NUMA node of each CPU. A machine without any has one, 0.
func nodes(root string) (map[int]int, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "devices/system/node", "node[0-9]*"))
	if err != nil {
		return nil, err
	}
	out := map[int]int{}
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue // no node
		}
		set, err := readSet(filepath.Join(dir, "cpulist"))
		if err != nil {
			return nil, err
		}
		for _, id := range set.List() {
			out[id] = n
		}
	}
	return out, nil
}

func readSet(path string) (cpuset.CPUSet, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return set, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

func readInt(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// All returns the IDs of all CPUs.
func (t Topology) All() cpuset.CPUSet {
	var ids []int
	for _, c := range t {
		ids = append(ids, c.ID)
	}
	return cpuset.New(ids...)
}

// Only returns the topology without the CPUs that are not in the set.
func (t Topology) Only(set cpuset.CPUSet) Topology {
	return slices.DeleteFunc(slices.Clone(t), func(c CPU) bool { return !set.Contains(c.ID) })
}

// ThreadsPerCore returns how many CPUs a core has; those of the largest if they differ.
func (t Topology) ThreadsPerCore() int {
	most := 1
	for _, n := range t.sizes(coreOf) {
		most = max(most, n)
	}
	return most
}

// A level says to which part of the machine a CPU belongs.
type level func(CPU) int

func coreOf(c CPU) int   { return c.Core }
func socketOf(c CPU) int { return c.Socket }
func numaOf(c CPU) int   { return c.NUMA }
func cacheOf(c CPU) int  { return c.Cache }

// near returns the CPUs of some parts of a level.
func (t Topology) near(of level, parts func(int) bool) cpuset.CPUSet {
	var ids []int
	for _, c := range t {
		if parts(of(c)) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// nodes returns the NUMA nodes that have CPUs.
func (t Topology) nodes() (out numa.Nodes) {
	for _, c := range t {
		out |= numa.NodesOf(c.NUMA)
	}
	return out
}

// sizes returns how many CPUs each part of a level has.
func (t Topology) sizes(of level) map[int]int {
	out := map[int]int{}
	for _, c := range t {
		out[of(c)]++
	}
	return out
}
