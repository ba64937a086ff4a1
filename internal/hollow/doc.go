// Package hollow plays many nodes against any API server: they register, renew their leases, report
// their status and run the pods that are bound to them, but their containers exist only in memory.
//
// Everything that a node decides is decided by the kubelet's own packages: admission, the plan and
// the status of each pod, node status and lease. Only the runtime below them is made up (runtime.go):
// a container runs at once, and ends when it is stopped or when an annotation of its pod says so.
//
// The nodes share one client, one watch of pods and one of nodes. A node that fails is a node whose
// kubelet ends while its containers stay; when it comes back, another kubelet finds them.
//
//	Fleet ── follows pods and nodes ──▶ node (1 per name) ── agent (one life of its kubelet)
//	                                      └─ runtime, records: what outlives the kubelet
//
// cmd/wherry is the caller of Fleet.
package hollow
