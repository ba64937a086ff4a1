package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Role says what of a cluster runs in a process. The zero value is a server with a node.
type Role string

// The other roles.
const (
	ServerOnly Role = "server" // the control plane, and no node
	NodeOnly   Role = "node"   // a node of somebody else's server
)

// HasServer reports whether the control plane runs here.
func (r Role) HasServer() bool { return r != NodeOnly }

// HasNode reports whether pods run here.
func (r Role) HasNode() bool { return r != ServerOnly }

// OwnRange reports whether this node itself says from which range its pods get their addresses. Others are given one.
func (c *Config) OwnRange() bool { return c.Role.HasServer() && !c.Joined }

// Valid reports whether it is one of the roles.
func (r Role) Valid() bool { return r == "" || r == ServerOnly || r == NodeOnly }

// serverFlags are the flags that mean nothing to a node alone.
var serverFlags = []string{
	"role", "secure-port", "join-server", "peer-port", "pod-cidr", "node-cidr-mask-size-ipv4", "node-cidr-mask-size-ipv6", "etcd-servers", "encryption-provider-config",
	"encryption-provider-config-automatic-reload", "apiserver-arg", "controller-manager-arg", "scheduler-config",
}

// AddJoinFlags binds the fields that mean something to a node that joins a server.
func (c *Config) AddJoinFlags(f *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(serverFlags, flag.Name) {
			f.AddFlag(flag)
		}
	})
	for _, name := range []string{"cluster-cidr", "service-cidr", "cluster-domain", "network-mode", "cluster-dns", "cloud-provider"} {
		f.Lookup(name).Usage += "; servers of Wherry tell this"
	}
}

// defaultNetworks fills in of which network of all pods this node has a range, or which range of it. Who names a range
// alone has a cluster of one node, as before there were several.
func (c *Config) defaultNetworks() {
	switch {
	case !c.Role.HasServer(): // its server tells
	case c.ClusterCIDR == "" && c.PodCIDR == DefaultPodCIDR:
		c.ClusterCIDR = DefaultClusterCIDR
	case c.ClusterCIDR == "":
		c.ClusterCIDR = c.PodCIDR
	case c.PodCIDR == DefaultPodCIDR && !strings.Contains(c.ClusterCIDR+",", DefaultClusterCIDR+","):
		c.PodCIDR = c.firstRanges()
	}
}

// firstRanges returns the first range of each network of all pods. What cannot be parsed stays as it is: it is told later.
func (c *Config) firstRanges() string {
	var out []string
	for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return c.ClusterCIDR
		}
		out = append(out, netip.PrefixFrom(p.Masked().Addr(), c.rangeBits(p)).String())
	}
	return strings.Join(out, ",")
}

// rangeBits is the size of nodes' ranges of a network, as the length of a prefix. A network that is smaller than a range
// has one.
func (c *Config) rangeBits(network netip.Prefix) int {
	bits := cmp.Or(c.NodeMask4, 24)
	if network.Addr().Is6() {
		bits = cmp.Or(c.NodeMask6, 64)
	}
	return max(bits, network.Bits())
}

// RangeBits returns the sizes of nodes' ranges of both families; what there is no network of has the default. The
// configuration must be complete.
func (c *Config) RangeBits() (bits4, bits6 int) {
	bits4, bits6 = cmp.Or(c.NodeMask4, 24), cmp.Or(c.NodeMask6, 64)
	for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
		case p.Addr().Is4():
			bits4 = c.rangeBits(p)
		default:
			bits6 = c.rangeBits(p)
		}
	}
	return bits4, bits6
}

// validateRanges checks that this node's range is one of the network of all pods, and that the network can be divided.
func (c *Config) validateRanges(pods, whole []netip.Prefix, bad func(string, ...any)) {
	for _, p := range pods {
		if !slices.ContainsFunc(whole, func(w netip.Prefix) bool { return w.Bits() <= p.Bits() && w.Contains(p.Addr()) }) {
			bad("--pod-cidr %s is not in --cluster-cidr %s; leave it out, or choose a range of that network", p, c.ClusterCIDR)
		}
	}
	if len(pods) != len(whole) {
		bad("--pod-cidr %s and --cluster-cidr %s must have the same IP families", c.PodCIDR, c.ClusterCIDR)
	}
	for _, w := range whole {
		if apart := c.rangeBits(w) - w.Bits(); apart > 16 {
			bad("--cluster-cidr %s has more than 65536 ranges of /%d; choose larger ones with --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6", w, c.rangeBits(w))
		}
		if c.rangeBits(w) > w.Addr().BitLen()-3 {
			bad("ranges of /%d of --cluster-cidr %s are too small: they must have at least 8 addresses", c.rangeBits(w), w)
		}
	}
}

// ClusterNetworks returns the networks of all pods. The configuration must be complete.
func (c *Config) ClusterNetworks() (out []netip.Prefix) {
	if c.ClusterCIDR == "" {
		return nil // a node that was not told
	}
	first, second, err := twoNetworks(c.ClusterCIDR, "cluster-cidr")
	if err != nil {
		panic(err) // impossible: Complete checks it
	}
	out = append(out, first.Masked())
	if second.IsValid() {
		out = append(out, second.Masked())
	}
	return out
}
