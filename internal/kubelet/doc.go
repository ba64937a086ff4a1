// Package kubelet is the node agent: it brings the pods that the sources name to
// life through the CRI and reports on them.
//
// It is the composition root of the node: it builds the parts below (sources, pod
// table, executors, volumes, probes, status, node object, server), connects them
// by wakes, and runs them. What a pod's life looks like is decided in podplan.
//
// internal/daemon and cmd/wherry call New, Run and Ready.
package kubelet
