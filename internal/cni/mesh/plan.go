package mesh

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"wherry.dev/internal/api/cluster"
)

// Node is what others know of a node.
type Node struct {
	Name      string
	Created   time.Time
	Addresses []netip.Addr   // at which it is reached (InternalIP), the preferred one first
	Ranges    []netip.Prefix // of its pods, one for each IP family
	Key       string         // its public key for WireGuard, in base64; "" if it has none
}

// Way is how the kernel reaches an address.
type Way struct {
	Link    int
	Gateway netip.Addr // invalid if the address is on the link
	Local   bool       // it is this machine's own
}

// route leads to the pods of another node.
type route struct {
	Range netip.Prefix
	Via   netip.Addr // the node, or the next router; of VXLAN, the node's end of it; invalid for WireGuard, which has no ends
	Link  int        // 0: the tunnel
}

// tunnelEnd is another node's end of the tunnel.
type tunnelEnd struct {
	MAC   string     // text of a net.HardwareAddr
	Outer netip.Addr // the node's address
	Inner netip.Addr // one of its addresses within
}

// peer is another node, for WireGuard.
type peer struct {
	Outer  netip.Addr     // the node's address
	Ranges []netip.Prefix // from which it sends, and to which is sent
}

// plan is what the kernel has to know.
type plan struct {
	routes map[netip.Prefix]route
	ends   map[netip.Addr]tunnelEnd // by their inner address
	peers  map[wgtypes.Key]peer
	// wrong has what is wrong with nodes, by name.
	wrong map[string]error
}

// planner knows what does not change.
type planner struct {
	self    string
	mode    string         // one of cluster.Mode…
	cluster []netip.Prefix // of which the ranges of nodes are
	// way looks up how an address is reached.
	way func(netip.Addr) (Way, error)
}

var errNoAddress = errors.New("it has no address that this node can reach")

// plan decides how the pods of each node are reached. ok is false as long as this node has no range itself.
//
// A node says itself which range and which addresses it has. It gets no more than one node may have: nothing outside of the
// cluster's networks, and nothing of which a node that was there before has a part.
func (p *planner) plan(nodes []Node) (out plan, own Node, ok bool) {
	out = plan{routes: map[netip.Prefix]route{}, ends: map[netip.Addr]tunnelEnd{}, peers: map[wgtypes.Key]peer{}, wrong: map[string]error{}}
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == p.self })
	if i < 0 || len(nodes[i].Ranges) == 0 || len(nodes[i].Addresses) == 0 {
		return out, own, false
	}
	own = nodes[i]
	others := slices.Clone(nodes)
	slices.SortFunc(others, func(a, b Node) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	taken := slices.Clone(own.Ranges)
	for _, n := range others {
		if n.Name == p.self || len(n.Ranges) == 0 {
			continue
		}
		if err := p.allowed(n, taken); err != nil {
			out.wrong[n.Name] = err
			continue
		}
		taken = append(taken, n.Ranges...)
		if err := p.connect(&out, own, n); err != nil {
			out.wrong[n.Name] = err
		}
	}
	return out, own, true
}

func (p *planner) allowed(n Node, taken []netip.Prefix) error {
	for _, r := range n.Ranges {
		if !slices.ContainsFunc(p.cluster, func(c netip.Prefix) bool { return c.Bits() <= r.Bits() && c.Contains(r.Addr()) }) {
			return fmt.Errorf("its range %s is not in the cluster's networks of pods, %v", r, p.cluster)
		}
		if i := slices.IndexFunc(taken, r.Overlaps); i >= 0 {
			return fmt.Errorf("its range %s overlaps %s, which another node has had before", r, taken[i])
		}
	}
	return nil
}

// connect adds the way to one node.
func (p *planner) connect(out *plan, own, n Node) error {
	var outer netip.Addr
	var way Way
	err := errNoAddress
	for _, a := range n.Addresses {
		if a.Is4() != own.Addresses[0].Is4() {
			continue // ends of a tunnel are of one family
		}
		if way, err = p.way(a); err == nil {
			outer = a
			break
		}
	}
	if err != nil {
		return err
	}
	if way.Local {
		return nil // another node on this machine: its bridge is here, too
	}
	if p.mode == cluster.ModeWireGuard {
		return out.encrypted(own, n, outer)
	}
	if p.mode == cluster.ModeVXLAN || p.mode == cluster.ModeAuto && way.Gateway.IsValid() {
		out.tunnel(n, outer)
		return nil
	}
	for _, r := range n.Ranges {
		via, link, err := p.direct(n, r, way, outer)
		if err != nil {
			return err
		}
		out.routes[r] = route{Range: r, Via: via, Link: link}
	}
	return nil
}

// direct returns over which address and link a range is reached without a tunnel: an address of its own family.
func (p *planner) direct(n Node, r netip.Prefix, way Way, outer netip.Addr) (via netip.Addr, link int, err error) {
	if r.Addr().Is4() != outer.Is4() {
		i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == r.Addr().Is4() })
		if i < 0 {
			return via, 0, fmt.Errorf("it has no address of the family of its range %s", r)
		}
		outer = n.Addresses[i]
		if way, err = p.way(outer); err != nil {
			return via, 0, err
		}
	}
	if way.Gateway.IsValid() {
		return way.Gateway, way.Link, nil
	}
	return outer, way.Link, nil
}

func (out *plan) tunnel(n Node, outer netip.Addr) {
	mac := macOf(n.Ranges).String()
	for _, r := range n.Ranges {
		inner := innerOf(r)
		out.routes[r] = route{Range: r, Via: inner}
		out.ends[inner] = tunnelEnd{MAC: mac, Outer: outer, Inner: inner}
	}
}

// encrypted adds a node that is reached through WireGuard. A key is one node's: that of the one which was there before.
func (out *plan) encrypted(own, n Node, outer netip.Addr) error {
	if n.Key == "" {
		return errors.New("it has told no key for WireGuard; its version is too old, or it has just started")
	}
	key, err := wgtypes.ParseKey(n.Key)
	if err != nil {
		return fmt.Errorf("its key for WireGuard is none: %w", err)
	}
	if _, taken := out.peers[key]; taken || n.Key == own.Key {
		return errors.New("its key for WireGuard is another node's, too")
	}
	out.peers[key] = peer{Outer: outer, Ranges: slices.Clone(n.Ranges)}
	for _, r := range n.Ranges {
		out.routes[r] = route{Range: r}
	}
	return nil
}

// innerOf is the address that a node has within the tunnel: the first of its range, which no pod gets.
func innerOf(r netip.Prefix) netip.Addr { return r.Masked().Addr() }

// macOf returns the hardware address of a node's end of the tunnel, which follows from its range, so that nobody has to
// tell it.
func macOf(ranges []netip.Prefix) net.HardwareAddr {
	sum := sha256.Sum256([]byte(ranges[0].Masked().String()))
	return append(net.HardwareAddr{0x0a}, sum[:5]...) // locally administered, of one machine
}

// tunnelMTU is how large packets in the tunnel may be on a link whose packets have mtu bytes at most. VXLAN puts headers of
// Ethernet, VXLAN and UDP around them, 30 bytes, WireGuard its own and UDP's, 40, and both an outer IP's.
func tunnelMTU(mode string, mtu int, outer netip.Addr) int {
	around := 30
	if mode == cluster.ModeWireGuard {
		around = 40
	}
	if outer.Is4() {
		return mtu - around - 20
	}
	return mtu - around - 40
}
