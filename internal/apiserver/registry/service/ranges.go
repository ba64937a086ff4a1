package service

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/apiserver/registry"
)

// DefaultCIDR is the name of the ServiceCIDR that shows the configured range.
const DefaultCIDR = "kubernetes"

// hugeBits is the number of host bits from which a range is too large for an int64. What lies behind
// that many addresses is not used.
const hugeBits = 62

var everything = storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}

// addressRange is a range that services get addresses from.
type addressRange struct{ *net.IPNet }

func (r addressRange) String() string { return r.IPNet.String() }

// Family returns the address family of the range.
func (r addressRange) Family() corev1.IPFamily {
	if utilnet.IsIPv6CIDR(r.IPNet) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func (r addressRange) size() int64 {
	ones, bits := r.Mask.Size()
	return int64(1) << min(bits-ones, hugeBits)
}

// usable returns the range of offsets that can be allocated: neither the network's own address nor,
// for IPv4, its broadcast address.
func (r addressRange) usable() (first, last int64) {
	first, last = 1, r.size()-1
	if r.Family() == corev1.IPv4Protocol && r.size() > 2 {
		last--
	}
	return first, last
}

// holds reports whether the address is a usable one of the range.
func (r addressRange) holds(ip net.IP) bool {
	if !r.Contains(ip) {
		return false
	}
	offset := new(big.Int).Sub(utilnet.BigForIP(ip), utilnet.BigForIP(r.IP))
	first, last := r.usable()
	return offset.IsInt64() && offset.Int64() >= first && offset.Int64() <= last
}

func (r addressRange) at(offset int64) string {
	return utilnet.AddIPOffset(utilnet.BigForIP(r.IP), int(offset)).String()
}

// dynamicFrom returns the offset from which addresses are allocated dynamically. The part before it
// is left for addresses that users choose (KEP-3070): a sixteenth of the range, at least 16 and at
// most 256.
func (r addressRange) dynamicFrom() int64 {
	band := min(max(r.size()/16, 16), 256)
	if band >= r.size()-2 {
		return 1
	}
	return band + 1
}

// usableRanges returns the ranges that addresses of the configured range's family come from, the oldest
// first: those of ServiceCIDRs that are ready and not being deleted. The configured range is one even if
// the default ServiceCIDR shows another, because the API's own service has its address there.
func usableRanges(all []networkingv1.ServiceCIDR, configured addressRange) []addressRange {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	var out []addressRange
	for i := range all {
		c := &all[i]
		if c.Name == DefaultCIDR && !slices.Contains(c.Spec.CIDRs, configured.String()) {
			out = slices.Insert(out, 0, configured)
		}
		if c.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			continue
		}
		for _, cidr := range c.Spec.CIDRs {
			_, parsed, err := net.ParseCIDR(cidr)
			if r := (addressRange{parsed}); err == nil && r.Family() == configured.Family() {
				out = append(out, r)
			}
		}
	}
	return out
}

// of returns the configured range of a family that is one of Families.
func (a *Allocator) of(family corev1.IPFamily) addressRange {
	return a.configured[slices.Index(a.Families(), family)]
}

// ranges returns the ranges of a family that the watch cache knows.
func (a *Allocator) ranges(ctx context.Context, family corev1.IPFamily) ([]addressRange, error) {
	list, err := registry.List[*networkingv1.ServiceCIDRList](ctx, a.lookup, networkingv1.Resource("servicecidrs"), metav1.NamespaceNone, everything)
	if err != nil {
		return nil, err
	}
	return usableRanges(list.Items, a.of(family)), nil
}

// rangesNow returns the ranges of a family that storage has: the watch cache may be behind.
func (a *Allocator) rangesNow(ctx context.Context, family corev1.IPFamily) ([]addressRange, error) {
	list, err := registry.ListLive[*networkingv1.ServiceCIDRList](ctx, a.lookup, networkingv1.Resource("servicecidrs"), metav1.NamespaceNone, everything)
	if err != nil {
		return nil, err
	}
	found := usableRanges(list.Items, a.of(family))
	if len(found) == 0 {
		return nil, fmt.Errorf("no ServiceCIDR of family %s is ready; create one, or wait for one that you have created", family)
	}
	return found, nil
}

// checkWanted returns an error if no range has the address.
func (a *Allocator) checkWanted(ctx context.Context, family corev1.IPFamily, wanted string) error {
	ip := utilnet.ParseIPSloppy(wanted)
	held := func(r addressRange) bool { return ip != nil && r.holds(ip) }
	if found, err := a.ranges(ctx, family); err != nil || slices.ContainsFunc(found, held) {
		return err
	}
	found, err := a.rangesNow(ctx, family)
	if err != nil || slices.ContainsFunc(found, held) {
		return err
	}
	names := make([]string, 0, len(found))
	for _, r := range found {
		names = append(names, r.String())
	}
	return fmt.Errorf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", wanted, strings.Join(names, ", "))
}
