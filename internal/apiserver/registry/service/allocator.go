// Package service holds what the API server does with services beyond storing them: each gets an
// address of the service range, and node ports, that no other service has.
package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	utilport "k8s.io/apimachinery/pkg/util/net"

	"wherry.dev/internal/apiserver/registry"
)

const (
	// ipFolder has no keys any more: addresses are IPAddress objects. It marks what a service holds, and
	// earlier releases kept claims of addresses there.
	ipFolder   = "serviceips/"
	portFolder = "nodeports/"

	// tries is how many random picks are made before all numbers are tried in order.
	tries = 16
)

// DefaultNodePorts is the range of node ports unless another one is asked for.
var DefaultNodePorts = utilport.PortRange{Base: 30000, Size: 2768}

// Claims records durably what is taken: see storage.Backend.
type Claims interface {
	Claim(ctx context.Context, key, owner string) (fresh bool, holder string, err error)
	Release(ctx context.Context, key, owner string) error
	Claims(ctx context.Context, folder string) (map[string]string, error)
}

// Allocator hands out addresses and node ports. An address is taken by making its IPAddress object, a port
// by a claim.
type Allocator struct {
	// ctx is for the hook after a deletion, which gets none: the claims must be released whatever
	// happens to the request.
	ctx        context.Context
	configured []addressRange // one of a family; the first is the default
	ports      utilport.PortRange
	claims     Claims
	lookup     *registry.Lookup
	strays     map[string]stray // claims that no service has, by key, when the repair last looked
}

// NewAllocator returns an allocator for the configured ranges of addresses, one of a family, and those of
// ServiceCIDRs, and for a range of node ports. Services get an address of the first range unless they ask for
// another family. It uses only the values of ctx, and ignores its cancellation.
func NewAllocator(ctx context.Context, cidrs []*net.IPNet, ports utilport.PortRange, claims Claims, lookup *registry.Lookup) *Allocator {
	a := &Allocator{ctx: context.WithoutCancel(ctx), ports: ports, claims: claims, lookup: lookup}
	for _, cidr := range cidrs {
		a.configured = append(a.configured, addressRange{cidr})
	}
	return a
}

// Families returns the address families of services, the default one first.
func (a *Allocator) Families() []corev1.IPFamily {
	out := make([]corev1.IPFamily, len(a.configured))
	for i, r := range a.configured {
		out[i] = r.Family()
	}
	return out
}

// claim is one key that was taken, to be released if the service is not created after all.
type claim struct{ key, owner string }

// port takes the wanted node port, or any free one if that is 0.
func (a *Allocator) port(ctx context.Context, owner string, wanted int32) (int32, claim, error) {
	if wanted != 0 {
		if !a.ports.Contains(int(wanted)) {
			return 0, claim{}, fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", a.ports)
		}
		c, err := a.exactly(ctx, claim{portFolder + strconv.Itoa(int(wanted)), owner}, "provided port is already allocated")
		return wanted, c, err
	}
	first, last := int64(a.ports.Base), int64(a.ports.Base+a.ports.Size-1)
	n, c, err := a.take(ctx, owner, pick{
		dynamic: first + staticPorts(a.ports.Size), first: first, last: last,
		folder: portFolder, key: func(n int64) string { return strconv.FormatInt(n, 10) },
	})
	if err == nil && n < 0 {
		err = fmt.Errorf("range is full")
	}
	return int32(n), c, err
}

// staticPorts returns how many ports at the range's beginning are for those who choose one (KEP-3668).
func staticPorts(size int) int64 {
	const least, most, share = 16, 128, 32
	if size <= least {
		return 0
	}
	return int64(min(max(least, size/share), most))
}

// exactly takes one key. The owner may take again what it has already (a port for both TCP and
// UDP). The returned claim is then empty, because nothing must be released.
func (a *Allocator) exactly(ctx context.Context, c claim, taken string) (claim, error) {
	fresh, holder, err := a.claims.Claim(ctx, c.key, c.owner)
	switch {
	case err != nil:
		return claim{}, err
	case fresh:
		return c, nil
	case holder == c.owner:
		return claim{}, nil
	}
	return claim{}, errors.New(taken)
}

// pick describes the numbers that take chooses from.
type pick struct {
	dynamic, first, last int64 // random picks start at dynamic
	folder               string
	key                  func(int64) string
}

// take claims a free number: a random one of the dynamic part, else the first free one of that
// part, else of the rest. It returns -1 if all are taken.
func (a *Allocator) take(ctx context.Context, owner string, p pick) (int64, claim, error) {
	try := func(n int64) (claim, bool, error) {
		c := claim{p.folder + p.key(n), owner}
		fresh, _, err := a.claims.Claim(ctx, c.key, owner)
		return c, fresh, err
	}
	if p.dynamic <= p.last {
		for range tries {
			n := p.dynamic + rand.Int64N(p.last-p.dynamic+1)
			if c, ok, err := try(n); ok || err != nil {
				return n, c, err
			}
		}
	}
	taken, err := a.claims.Claims(ctx, p.folder)
	if err != nil {
		return -1, claim{}, err
	}
	for _, part := range [][2]int64{{p.dynamic, p.last}, {p.first, min(p.dynamic-1, p.last)}} {
		for n := part[0]; n <= part[1]; n++ {
			if _, ok := taken[p.folder+p.key(n)]; ok {
				continue
			}
			if c, ok, err := try(n); ok || err != nil {
				return n, c, err
			}
		}
	}
	return -1, claim{}, nil
}
