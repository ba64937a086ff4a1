// Package v2 has tests of kubelet and runtime together that need pure cgroup v2, swap or NUMA nodes: `make
// test-v2` runs them in a small machine that has all of these.
package v2
