package endpointslicemirroring

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointsliceutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/controller/backing"
)

// perSubset is how many addresses of a subset are mirrored at most: each becomes one slice for each
// IP family.
const perSubset = 1000

// plan says what has to be written so that slices mirror an Endpoints object.
type plan struct {
	create, update, remove []*discoveryv1.EndpointSlice
	invalid                int // addresses that are no IP addresses
	skipped                int // addresses that are not mirrored, the invalid ones among them
	added, updated, gone   int // endpoints
	groups                 map[groupKey]int
}

// groupKey is what a slice is about. Each group has one.
type groupKey struct {
	family discoveryv1.AddressType
	ports  endpointsliceutil.PortMapKey
}

// group are the endpoints that should be in one slice.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// mirrored reports whether an object is mirrored at all.
func mirrored(e *v1.Endpoints) bool {
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return e.Labels[discoveryv1.LabelSkipMirror] != "true" && !lock
}

// planFor compares an Endpoints object with the slices that mirror it.
func planFor(e *v1.Endpoints, have []*discoveryv1.EndpointSlice) plan {
	p := plan{groups: map[groupKey]int{}}
	want := p.wanted(e)
	byGroup := map[groupKey][]*discoveryv1.EndpointSlice{}
	for _, s := range have {
		k := groupKey{s.AddressType, endpointsliceutil.NewPortMapKey(slices.Clone(s.Ports))}
		byGroup[k] = append(byGroup[k], s)
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), groupKey.compare) {
		p.groups[k] = len(want[k].endpoints)
		p.compare(e, k, want[k], byGroup[k])
		delete(byGroup, k)
	}
	for _, k := range slices.SortedFunc(maps.Keys(byGroup), groupKey.compare) {
		for _, s := range byGroup[k] {
			p.gone += len(s.Endpoints)
			p.remove = append(p.remove, s)
		}
	}
	p.recycle()
	return p
}

func (k groupKey) compare(o groupKey) int {
	return cmp.Or(cmp.Compare(k.family, o.family), cmp.Compare(k.ports, o.ports))
}

// wanted sorts the addresses of all subsets into groups.
func (p *plan) wanted(e *v1.Endpoints) map[groupKey]group {
	out := map[groupKey]group{}
	for _, subset := range backing.Canonical(e.Subsets) {
		ports := portsOf(subset.Ports)
		key := endpointsliceutil.NewPortMapKey(ports)
		total, taken := len(subset.Addresses)+len(subset.NotReadyAddresses), 0
		take := func(all []v1.EndpointAddress, ready bool) {
			for i := range all {
				if taken == perSubset {
					return
				}
				endpoint, family := endpointOf(&all[i], ready)
				if family == "" {
					p.invalid++
					continue
				}
				taken++
				k := groupKey{family, key}
				out[k] = group{ports, append(out[k].endpoints, endpoint)}
			}
		}
		take(subset.Addresses, true)
		take(subset.NotReadyAddresses, false)
		p.skipped += total - taken
	}
	return out
}

func portsOf(all []v1.EndpointPort) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	for _, port := range all {
		out = append(out, discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Port, Protocol: &port.Protocol, AppProtocol: port.AppProtocol})
	}
	return out
}

// endpointOf returns an address as a slice has it; the family is "" if it is no IP address.
func endpointOf(a *v1.EndpointAddress, ready bool) (discoveryv1.Endpoint, discoveryv1.AddressType) {
	ip := utilnet.ParseIPSloppy(a.IP)
	if ip == nil {
		return discoveryv1.Endpoint{}, ""
	}
	out := discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		out.Hostname = &a.Hostname
	}
	if utilnet.IsIPv6(ip) {
		return out, discoveryv1.AddressTypeIPv6
	}
	return out, discoveryv1.AddressTypeIPv4
}

// compare plans for one group. The first of its slices is kept, should there be several.
func (p *plan) compare(e *v1.Endpoints, k groupKey, want group, have []*discoveryv1.EndpointSlice) {
	s := sliceFor(e, k.family, want)
	if len(have) == 0 {
		p.added += len(want.endpoints)
		p.create = append(p.create, s)
		return
	}
	p.remove = append(p.remove, have[1:]...)
	added, updated, gone := difference(have[0].Endpoints, want.endpoints)
	p.added, p.updated, p.gone = p.added+added, p.updated+updated, p.gone+gone
	if added+updated+gone == 0 && equality.Semantic.DeepEqual(have[0].Labels, s.Labels) &&
		equality.Semantic.DeepEqual(have[0].Annotations, s.Annotations) && metav1.IsControlledBy(have[0], e) {
		return
	}
	p.update = append(p.update, replacing(have[0], s))
}

// replacing returns s as the new content of the slice old.
func replacing(old, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.GenerateName, s.Name, s.UID, s.ResourceVersion = "", old.Name, old.UID, old.ResourceVersion
	return s
}

// difference counts how a slice's endpoints differ from those that it should have.
func difference(have, want []discoveryv1.Endpoint) (added, updated, gone int) {
	left := endpointsliceutil.EndpointSet{}
	for i := range want {
		left.Insert(&want[i])
	}
	for i := range have {
		switch w := left.Get(&have[i]); w {
		case nil:
			gone++
		default:
			if !endpointsliceutil.EndpointsEqualBeyondHash(w, &have[i]) {
				updated++
			}
			left.Delete(w)
		}
	}
	return left.Len(), updated, gone
}

// sliceFor returns the slice that mirrors a group.
func sliceFor(e *v1.Endpoints, family discoveryv1.AddressType, g group) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: prefix(e.Name), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, v1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family, Ports: g.ports, Endpoints: g.endpoints,
	}
	maps.Copy(s.Labels, e.Labels)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, manager
	maps.Copy(s.Annotations, e.Annotations)
	delete(s.Annotations, v1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, v1.LastAppliedConfigAnnotation)
	return s
}

// prefix returns what the names of a service's slices begin with: its name and, if there is room, a
// dash.
func prefix(service string) string {
	if len(apivalidation.NameIsDNSSubdomain(service+"-", true)) > 0 {
		return service
	}
	return service + "-"
}

// recycle replaces a creation and a deletion of the same family by one update: whoever watches never
// sees the service without its endpoints.
func (p *plan) recycle() {
	create := p.create[:0:0]
	for _, s := range p.create {
		i := slices.IndexFunc(p.remove, func(old *discoveryv1.EndpointSlice) bool { return old.AddressType == s.AddressType })
		if i < 0 {
			create = append(create, s)
			continue
		}
		p.update = append(p.update, replacing(p.remove[i], s))
		p.remove = slices.Delete(p.remove, i, i+1)
	}
	p.create = create
}
