package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// reservedMemory is the value of a flag that says what NUMA nodes keep: 0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi. It may
// be given several times.
type reservedMemory struct {
	to    *[]kubeletconfig.MemoryReservation
	given bool
}

// Type implements pflag.Value.
func (r *reservedMemory) Type() string { return "reserved-memory" }

// String implements pflag.Value.
func (r *reservedMemory) String() string {
	if r.to == nil {
		return ""
	}
	var out []string
	for _, m := range *r.to {
		var limits []string
		for _, name := range slices.Sorted(maps.Keys(m.Limits)) {
			q := m.Limits[name]
			limits = append(limits, fmt.Sprintf("%s=%s", name, q.String()))
		}
		out = append(out, fmt.Sprintf("%d:%s", m.NumaNode, strings.Join(limits, ",")))
	}
	return strings.Join(out, ";")
}

// Set implements pflag.Value.
func (r *reservedMemory) Set(s string) error {
	if !r.given {
		*r.to, r.given = nil, true
	}
	for part := range strings.SplitSeq(s, ";") {
		if part == "" {
			continue
		}
		node, limits, ok := strings.Cut(part, ":")
		id, err := strconv.ParseInt(node, 10, 32)
		if !ok || err != nil || id < 0 {
			return fmt.Errorf("%q: want NODE:RESOURCE=QUANTITY,…, such as 0:memory=1Gi", part)
		}
		m := kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: v1.ResourceList{}}
		for limit := range strings.SplitSeq(limits, ",") {
			name, value, _ := strings.Cut(limit, "=")
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return fmt.Errorf("%q: want RESOURCE=QUANTITY, such as memory=1Gi", limit)
			}
			if _, twice := m.Limits[v1.ResourceName(name)]; twice {
				return fmt.Errorf("%q: %s is there twice", part, name)
			}
			m.Limits[v1.ResourceName(name)] = q
		}
		*r.to = append(*r.to, m)
	}
	return nil
}
