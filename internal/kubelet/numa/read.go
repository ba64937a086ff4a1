package numa

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what a kernel tells of its NUMA nodes.
type Machine struct {
	Nodes Nodes
	// Distances are those between the nodes, by node; in the order of the nodes' numbers.
	Distances map[int][]int
	// Memory has the size of each node's memory and huge pages, in bytes. The huge pages are part of the memory.
	Memory map[int]map[v1.ResourceName]uint64
}

// Read returns what a sysfs tells; root is /sys but in tests. A machine that tells of no node has one, 0, with the memory
// that is given.
func Read(root string, memory uint64) (Machine, error) {
	m := Machine{Distances: map[int][]int{}, Memory: map[int]map[v1.ResourceName]uint64{}}
	dirs, err := filepath.Glob(filepath.Join(root, "devices/system/node", "node[0-9]*"))
	if err != nil {
		return m, err
	}
	if len(dirs) == 0 {
		m.Nodes, m.Distances[0] = NodesOf(0), []int{10}
		m.Memory[0] = map[v1.ResourceName]uint64{v1.ResourceMemory: memory}
		return m, nil
	}
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue // no node
		}
		if id >= MaxNodes {
			return m, fmt.Errorf("NUMA node %d: the numbers of nodes may go up to %d", id, MaxNodes-1)
		}
		m.Nodes |= NodesOf(id)
		if m.Memory[id], err = memoryOf(dir); err != nil {
			return m, fmt.Errorf("NUMA node %d: %w", id, err)
		}
		if m.Distances[id], err = distances(dir); err != nil {
			return m, fmt.Errorf("NUMA node %d: %w", id, err)
		}
	}
	return m, nil
}

func memoryOf(dir string) (map[v1.ResourceName]uint64, error) {
	out := map[v1.ResourceName]uint64{}
	data, err := os.ReadFile(filepath.Join(dir, "meminfo"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) { // Node 0 MemTotal:       25165824 kB
		f := strings.Fields(line)
		if len(f) < 5 || f[2] != "MemTotal:" {
			continue
		}
		kib, err := strconv.ParseUint(f[3], 10, 54)
		if err != nil {
			return nil, fmt.Errorf("meminfo: %w", err)
		}
		out[v1.ResourceMemory] = kib << 10
	}
	pages, err := filepath.Glob(filepath.Join(dir, "hugepages", "hugepages-*kB"))
	if err != nil {
		return nil, err
	}
	for _, sub := range pages {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(sub), "hugepages-"), "kB")
		kib, err := strconv.ParseUint(size, 10, 40)
		if err != nil {
			return nil, fmt.Errorf("huge pages: %w", err)
		}
		n, err := readUint(filepath.Join(sub, "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		name := v1.ResourceHugePagesPrefix + resource.NewQuantity(int64(kib<<10), resource.BinarySI).String()
		out[v1.ResourceName(name)] = n * kib << 10
	}
	return out, nil
}

// distances returns nothing if the kernel does not tell.
func distances(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "distance"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for f := range strings.FieldsSeq(string(data)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("distance: %w", err)
		}
		out = append(out, n)
	}
	return out, nil
}

func readUint(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 40)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
