// Package v2 has tests of kubelet and runtime together that need pure cgroup v2 and swap: `make
// test-v2` runs them in a small machine that has both.
package v2
