// Package cluster is the vocabulary of clusters with several nodes: what a node has to know of the cluster that it joins,
// and the token with which it does.
package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The config map in which servers say what nodes have to know (Facts). Nodes may read it, and nobody else.
const (
	FactsNamespace = metav1.NamespaceSystem
	FactsName      = "wherry-cluster"
)

// The config map, as kubeadm's clusters have it, from which somebody without credentials learns of the cluster's
// certificate authority: a kubeconfig without users.
const (
	InfoNamespace = metav1.NamespacePublic
	InfoName      = "cluster-info"
	InfoKey       = "kubeconfig"
)

// AnnotationDNS is the annotation of a node that has a DNS server of ours for its pods: the address and port of it.
const AnnotationDNS = "wherry.dev/dns"

// AnnotationVolumes is the annotation in which a node says in which folder of its disk volumes of the class local can be
// made, or NoVolumes.
const (
	AnnotationVolumes = "wherry.dev/local-volumes"
	NoVolumes         = "none"
)

// VolumesPath is where a node's kubelet serves its disk (package localvolume has the methods):
//
//	GET    /wherry/volumes                       what is there
//	PUT    /wherry/volumes/NAME?size=BYTES       Make
//	POST   /wherry/volumes/NAME?size=BYTES       Limit
//	DELETE /wherry/volumes/NAME                  Remove
//	DELETE /wherry/volumes/NAME?version=VERSION  Tidy
//
// Who may do that, the kubelet checks as for everything that has no subresource of its own (nodes/proxy).
const VolumesPath = "/wherry/volumes"

// Ways in which pods reach those of other nodes.
const (
	ModeAuto   = "auto"   // direct routes to nodes on the same link, VXLAN to others
	ModeRoutes = "routes" // routes to the node's address, however far it is: for networks that know the ways back
	ModeVXLAN  = "vxlan"
	// ModeWireGuard is encrypted tunnels to all.
	ModeWireGuard = "wireguard"
	ModeNone      = "none" // somebody else's network
)

// Modes are all of them.
var Modes = []string{ModeAuto, ModeRoutes, ModeVXLAN, ModeWireGuard, ModeNone}

// AnnotationWireGuard is the annotation of a node that has its public key, in base64, for ModeWireGuard.
const AnnotationWireGuard = "wherry.dev/wireguard"

// CloudExternal says that a cloud's own controller manager initializes nodes and balances services.
const CloudExternal = "external"

// Facts are what all nodes of a cluster have to agree on.
type Facts struct {
	PodNetworks     []netip.Prefix // from which nodes get their ranges
	ServiceNetworks []netip.Prefix
	Domain          string
	DNS             []string // what pods get as their DNS servers
	Mode            string   // one of Mode…
	VNI             uint32   // of VXLAN; differs between clusters
	// Mask4 and Mask6 are the sizes of nodes' ranges, as lengths of prefixes; 0 for the defaults.
	Mask4, Mask6 int
	// Cloud is CloudExternal, or "" for no cloud.
	Cloud string
}

// Keys of the config map.
const (
	keyPods     = "pod-networks"
	keyServices = "service-networks"
	keyDomain   = "cluster-domain"
	keyDNS      = "cluster-dns"
	keyMode     = "network-mode"
	keyVNI      = "vxlan-id"
	keyMask4    = "node-mask-ipv4"
	keyMask6    = "node-mask-ipv6"
	keyCloud    = "cloud-provider"
)

// Data returns the facts as the config map has them.
func (f Facts) Data() map[string]string {
	data := map[string]string{
		keyPods: join(f.PodNetworks), keyServices: join(f.ServiceNetworks), keyDomain: f.Domain, keyDNS: strings.Join(f.DNS, ","),
		keyMode: f.Mode, keyVNI: strconv.FormatUint(uint64(f.VNI), 10),
	}
	if f.Cloud != "" {
		data[keyCloud] = f.Cloud
	}
	for key, bits := range map[string]int{keyMask4: f.Mask4, keyMask6: f.Mask6} {
		if bits > 0 {
			data[key] = strconv.Itoa(bits)
		}
	}
	return data
}

// FromData reads what Data returned. The error names the key that is wrong.
func FromData(data map[string]string) (f Facts, err error) {
	if f.PodNetworks, err = ParseNetworks(keyPods, data[keyPods]); err != nil {
		return f, err
	}
	if f.ServiceNetworks, err = ParseNetworks(keyServices, data[keyServices]); err != nil {
		return f, err
	}
	f.Domain, f.Mode, f.Cloud = data[keyDomain], data[keyMode], data[keyCloud]
	if data[keyDNS] != "" {
		f.DNS = strings.Split(data[keyDNS], ",")
	}
	vni, err := strconv.ParseUint(data[keyVNI], 10, 24)
	if err != nil {
		return f, fmt.Errorf("%s %q is not a number of 24 bits", keyVNI, data[keyVNI])
	}
	f.VNI = uint32(vni)
	for key, bits := range map[string]*int{keyMask4: &f.Mask4, keyMask6: &f.Mask6} {
		if data[key] == "" {
			continue
		}
		if *bits, err = strconv.Atoi(data[key]); err != nil || *bits < 0 || *bits > 128 {
			return f, fmt.Errorf("%s %q is not the length of a prefix", key, data[key])
		}
	}
	if !slices.Contains(Modes, f.Mode) {
		return f, fmt.Errorf("%s %q must be one of %s", keyMode, f.Mode, strings.Join(Modes, ", "))
	}
	return f, nil
}

func join(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// ParseNetworks reads networks that are separated by commas. The error says what of it is none; name is what it calls the list.
func ParseNetworks(name, list string) (out []netip.Prefix, err error) {
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q is not a network such as 10.244.0.0/16", name, text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
