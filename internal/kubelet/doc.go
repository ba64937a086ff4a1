// Package kubelet is the node agent: it runs the pods that the sources name through the CRI, and
// reports on them.
//
// It is the composition root of the node: it builds the parts below (sources, pod table, executors,
// volumes, probes, status, node object, server), connects them by wakes, and runs them. podplan
// decides what a pod's life looks like.
//
// internal/daemon and cmd/wherry call New, Run and Ready.
package kubelet
