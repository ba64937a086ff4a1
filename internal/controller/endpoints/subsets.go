package endpoints

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/controller/backing"
)

// capacity is how many addresses an object has at most, ready or not.
const capacity = 1000

// subsetsOf returns the addresses and ports of a service's pods, in canonical form.
func subsetsOf(svc *v1.Service, pods []*v1.Pod) []v1.EndpointSubset {
	var out []v1.EndpointSubset
	for _, p := range pods {
		if !endpointsliceutil.ShouldPodBeInEndpoints(p, svc.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(svc, p)
		if !ok {
			continue
		}
		one := v1.EndpointSubset{NotReadyAddresses: []v1.EndpointAddress{address}}
		if svc.Spec.PublishNotReadyAddresses || endpointsliceutil.IsPodReady(p) {
			one = v1.EndpointSubset{Addresses: []v1.EndpointAddress{address}}
		}
		if len(svc.Spec.Ports) == 0 && svc.Spec.ClusterIP == v1.ClusterIPNone {
			out = append(out, one)
		}
		for i := range svc.Spec.Ports {
			port := &svc.Spec.Ports[i]
			if n, err := endpointslice.FindPort(p, port); err == nil { // else the pod does not have it
				one.Ports = append(one.Ports, v1.EndpointPort{Name: port.Name, Port: int32(n), Protocol: port.Protocol, AppProtocol: port.AppProtocol})
			}
		}
		if len(one.Ports) > 0 {
			out = append(out, one)
		}
	}
	return backing.Canonical(out)
}

// addressOf returns a pod's address of the service's first IP family.
func addressOf(svc *v1.Service, p *v1.Pod) (v1.EndpointAddress, bool) {
	for _, ip := range p.Status.PodIPs {
		parsed := utilnet.ParseIPSloppy(ip.IP)
		if parsed == nil || utilnet.IsIPv6(parsed) != wantsIPv6(svc, p) {
			continue
		}
		a := v1.EndpointAddress{
			IP: parsed.String(), NodeName: &p.Spec.NodeName,
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		}
		if endpointsliceutil.ShouldSetHostname(p, svc) {
			a.Hostname = p.Spec.Hostname
		}
		return a, true
	}
	return v1.EndpointAddress{}, false
}

func wantsIPv6(svc *v1.Service, p *v1.Pod) bool {
	switch {
	case len(svc.Spec.IPFamilies) > 0:
		return svc.Spec.IPFamilies[0] == v1.IPv6Protocol
	case !headless(svc):
		return utilnet.IsIPv6String(svc.Spec.ClusterIP)
	}
	return utilnet.IsIPv6String(p.Status.PodIP)
}

// equality leaves out versions of pods: annotations and the like change them, too.
var equality = conversion.EqualitiesOrDie(func(a, b v1.ObjectReference) bool {
	a.ResourceVersion, b.ResourceVersion = "", ""
	return a == b
})

func sameSubsets(a, b []v1.EndpointSubset) bool { return equality.DeepEqual(a, b) }

// truncate leaves out addresses over capacity, ready ones last, from each subset in proportion.
func truncate(subsets []v1.EndpointSubset) (out []v1.EndpointSubset, over bool) {
	ready, rest := 0, 0
	for _, s := range subsets {
		ready += len(s.Addresses)
		rest += len(s.NotReadyAddresses)
	}
	if ready+rest <= capacity {
		return subsets, false
	}
	out = slices.Clone(subsets)
	ofReady, ofRest := share{room: capacity, total: ready}, share{room: capacity - ready, total: rest}
	for i := range out {
		if ready > capacity {
			out[i].Addresses = ofReady.take(out[i].Addresses)
			out[i].NotReadyAddresses = nil
		} else {
			out[i].NotReadyAddresses = ofRest.take(out[i].NotReadyAddresses)
		}
	}
	return out, true
}

// share deals out room among lists with total elements together.
type share struct{ room, total, used int }

func (s *share) take(all []v1.EndpointAddress) []v1.EndpointAddress {
	if s.total == 0 {
		return all
	}
	n := int(math.Ceil(float64(len(all)) / float64(s.total) * float64(s.room)))
	n = min(n, s.room-s.used, len(all))
	s.used += n
	return all[:n]
}
