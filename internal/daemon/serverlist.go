package daemon

import (
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// serversIn returns the addresses (host:port) of the API servers that the slice of default/kubernetes names, sorted.
func serversIn(s *discoveryv1.EndpointSlice) (out []string) {
	for _, e := range s.Endpoints {
		for _, a := range e.Addresses {
			for _, p := range s.Ports {
				if p.Port != nil && net.ParseIP(a) != nil {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
