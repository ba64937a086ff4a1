// Package cni connects pods to the network. It has two ways, chosen by what lies in
// the CNI configuration folder: whatever is configured there, by libcni and its
// plugins; or, when there is nothing, Wherry's own bridge, driven in-process.
//
// Both are idempotent: Setup after a crash clears what was half made first, and
// Teardown works when little or nothing was made. The bridge's addresses are
// durable leases; its address translation is one nftables table for each instance
// of Wherry, in sets and maps, not a rule for each pod. What is attached to a
// configured network is recorded before its plugins are called, with the
// configuration: a pod leaves the network that it joined, whatever became of the
// folder; what nobody removes any more, GC does.
//
// The CRI server in package cri is the one that calls it.
package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
)

// IfName is the interface of a pod, by Kubernetes' convention.
const IfName = "eth0"

// Pod is what the network must know of a sandbox.
type Pod struct {
	ID        string // of the sandbox
	Name      string
	Namespace string
	UID       string
	NetNS     string // path of the network namespace; may be gone at Teardown
	Ports     []PortMapping
	Bandwidth Bandwidth
	DNS       *DNS         // for plugins with the capability dns
	Cgroup    string       // for plugins with the capability cgroupPath
	IPs       []netip.Addr // that a live sandbox has, where they are known
}

// DNS is the pod's resolver configuration as CRI has it.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// PortMapping opens a port of the host that leads to the pod.
type PortMapping struct {
	Protocol      string     `json:"protocol"` // tcp, udp or sctp
	ContainerPort uint16     `json:"containerPort"`
	HostPort      uint16     `json:"hostPort"`
	HostIP        netip.Addr `json:"hostIP"` // zero or unspecified: every address of the host
}

// Attachment is what Setup did for a pod. The caller keeps it with the pod's record
// and hands it back to Teardown.
type Attachment struct {
	Network string          `json:"network"` // "wherry", or the name of the CNI network
	IPs     []netip.Addr    `json:"ips"`     // the pod's primary address first
	MAC     string          `json:"mac,omitempty"`
	Link    string          `json:"link,omitempty"`   // host side of the veth pair
	Result  json.RawMessage `json:"result,omitempty"` // of the CNI plugins
}

// ErrNotReady says that there is no network that pods could be connected to.
var ErrNotReady = errors.New("network is not ready")
