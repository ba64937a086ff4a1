package backing

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// hostKey tells addresses apart: pods on the host's network have the same one.
type hostKey struct {
	ip  string
	uid types.UID
}

func keyOf(a *v1.EndpointAddress) hostKey {
	k := hostKey{ip: a.IP}
	if a.TargetRef != nil {
		k.uid = a.TargetRef.UID
	}
	return k
}

func (k hostKey) compare(o hostKey) int {
	return cmp.Or(cmp.Compare(k.ip, o.ip), cmp.Compare(k.uid, o.uid))
}

// Canonical returns the one form of subsets that say the same: each port is in the subset of exactly
// the addresses that have it, and everything is sorted. An address that is not ready somewhere for a
// port is not ready for it.
func Canonical(subsets []v1.EndpointSubset) []v1.EndpointSubset {
	addresses := map[hostKey]v1.EndpointAddress{}
	byPort := map[portKey]map[hostKey]bool{} // whether they are ready
	for _, s := range subsets {
		ports := s.Ports
		if len(ports) == 0 {
			ports = []v1.EndpointPort{{Port: -1}} // stands for none
		}
		for _, port := range ports {
			hosts := byPort[keyOfPort(port)]
			if hosts == nil {
				hosts = map[hostKey]bool{}
				byPort[keyOfPort(port)] = hosts
			}
			for _, a := range s.Addresses {
				k := keyOf(&a)
				first(addresses, k, a)
				if _, known := hosts[k]; !known {
					hosts[k] = true
				}
			}
			for _, a := range s.NotReadyAddresses {
				first(addresses, keyOf(&a), a)
				hosts[keyOf(&a)] = false
			}
		}
	}
	return group(addresses, byPort)
}

func first(all map[hostKey]v1.EndpointAddress, k hostKey, a v1.EndpointAddress) {
	if _, ok := all[k]; !ok {
		all[k] = a
	}
}

// group makes a subset of all ports that the same addresses have.
func group(addresses map[hostKey]v1.EndpointAddress, byPort map[portKey]map[hostKey]bool) []v1.EndpointSubset {
	found := map[string]*v1.EndpointSubset{}
	for port, hosts := range byPort {
		sorted := slices.SortedFunc(maps.Keys(hosts), hostKey.compare)
		id := hostsID(sorted, hosts)
		s := found[id]
		if s == nil {
			s = &v1.EndpointSubset{}
			for _, h := range sorted {
				if hosts[h] {
					s.Addresses = append(s.Addresses, addresses[h])
				} else {
					s.NotReadyAddresses = append(s.NotReadyAddresses, addresses[h])
				}
			}
			found[id] = s
		}
		if port.port > 0 {
			s.Ports = append(s.Ports, port.value())
		}
	}
	out := make([]v1.EndpointSubset, 0, len(found))
	for _, s := range found {
		slices.SortFunc(s.Ports, comparePorts)
		out = append(out, *s)
	}
	slices.SortFunc(out, compareSubsets)
	return out
}

func hostsID(sorted []hostKey, ready map[hostKey]bool) string {
	var b strings.Builder
	for _, h := range sorted {
		b.WriteString(h.ip + "\x00" + string(h.uid))
		if ready[h] {
			b.WriteString("\x01")
		}
		b.WriteString("\x02")
	}
	return b.String()
}

// portKey is a port by value.
type portKey struct {
	name, protocol, app string
	hasApp              bool
	port                int32
}

func keyOfPort(p v1.EndpointPort) portKey {
	k := portKey{name: p.Name, protocol: string(p.Protocol), port: p.Port, hasApp: p.AppProtocol != nil}
	if k.hasApp {
		k.app = *p.AppProtocol
	}
	return k
}

func (k portKey) value() v1.EndpointPort {
	p := v1.EndpointPort{Name: k.name, Protocol: v1.Protocol(k.protocol), Port: k.port}
	if k.hasApp {
		p.AppProtocol = &k.app
	}
	return p
}

func comparePorts(a, b v1.EndpointPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(keyOfPort(a).app, keyOfPort(b).app))
}

func compareSubsets(a, b v1.EndpointSubset) int {
	return cmp.Or(slices.CompareFunc(a.Ports, b.Ports, comparePorts),
		slices.CompareFunc(a.Addresses, b.Addresses, compareAddresses),
		slices.CompareFunc(a.NotReadyAddresses, b.NotReadyAddresses, compareAddresses))
}

func compareAddresses(a, b v1.EndpointAddress) int { return keyOf(&a).compare(keyOf(&b)) }
