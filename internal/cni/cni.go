// Package cni connects pods to the network. There are two ways, and the content of the CNI
// configuration folder decides: whatever is configured there, through libcni and its plugins; or,
// if there is nothing, Wherry's own bridge, driven in-process.
//
// Both are idempotent: Setup after a crash first removes what was half made, and Teardown works
// even if little or nothing was made. The bridge's addresses are durable leases. Its address
// translation is one nftables table per instance of Wherry, with sets and maps instead of a rule
// for each pod. An attachment to a configured network is recorded before its plugins are called,
// with the configuration: a pod leaves the network that it joined, whatever became of the folder.
// What nobody else removes, GC does.
//
// The CRI server in package cri is the caller.
package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
)

// IfName is the name of a pod's interface, by Kubernetes' convention.
const IfName = "eth0"

// Pod is what the network needs to know about a sandbox.
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
	IPs       []netip.Addr // addresses of a live sandbox, if known
}

// DNS is a resolver configuration, as in CRI.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// PortMapping maps a port of the host to the pod.
type PortMapping struct {
	Protocol      string     `json:"protocol"` // tcp, udp or sctp
	ContainerPort uint16     `json:"containerPort"`
	HostPort      uint16     `json:"hostPort"`
	HostIP        netip.Addr `json:"hostIP"` // zero or unspecified means every address of the host
}

// Attachment is what Setup did for a pod. The caller keeps it with the pod's record and passes it
// to Teardown.
type Attachment struct {
	Network string          `json:"network"` // "wherry", or the name of the CNI network
	IPs     []netip.Addr    `json:"ips"`     // the pod's primary address first
	MAC     string          `json:"mac,omitempty"`
	Link    string          `json:"link,omitempty"`   // host side of the veth pair
	DNS     *DNS            `json:"dns,omitempty"`    // the name servers that the CNI plugins know of
	Result  json.RawMessage `json:"result,omitempty"` // of the CNI plugins
}

// ErrNotReady means that there is no network to which pods could be connected.
var ErrNotReady = errors.New("network is not ready")
