package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What --dns may be.
const (
	DNSBuiltin = "builtin"
	DNSNone    = "none"
)

// dnsIndex is which address of the service network the DNS service has (kubeadm's convention).
const dnsIndex = 10

func (c *Config) addDNSFlags(f *pflag.FlagSet) {
	f.StringVar(&c.DNS, "dns", c.DNS, "who answers for the cluster's names: builtin, or none if you bring your own DNS")
	f.StringSliceVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "addresses of the cluster's DNS servers, if it is not the built-in one")
	f.StringSliceVar(&c.DNSResolvers, "dns-resolver", c.DNSResolvers, "DNS servers for all other names, ADDRESS or ADDRESS:PORT (default: those in /etc/resolv.conf)")
	f.StringArrayVar(&c.DNSStubDomains, "dns-stub-domain", c.DNSStubDomains, "DNS servers for a domain, DOMAIN=ADDRESS,ADDRESS:PORT; may be repeated")
}

// DNSAddress returns the address of the built-in DNS service; ok is false if there is none.
func (c *Config) DNSAddress() (ip netip.Addr, ok bool, err error) {
	if c.DNS == DNSNone || len(c.ClusterDNS) > 0 {
		return ip, false, nil
	}
	services, _, err := ServiceNetworks(c.ServiceCIDR)
	if err != nil {
		return ip, false, err
	}
	ip = services.Masked().Addr()
	for range dnsIndex {
		ip = ip.Next()
	}
	if !services.Contains(ip) {
		return ip, false, fmt.Errorf("--service-cidr %s is too small for the DNS service, which has its address number %d: choose a larger network, or --dns=none", services, dnsIndex)
	}
	return ip, true, nil
}

// DNSServers returns whom the built-in DNS asks for other names: resolvers instead of those of the
// node, if there are any, and those of single domains.
func (c *Config) DNSServers() (resolvers []netip.AddrPort, stubs map[string][]netip.AddrPort, err error) {
	for _, s := range c.DNSResolvers {
		r, err := parseResolver(s)
		if err != nil {
			return nil, nil, fmt.Errorf("--dns-resolver: %w", err)
		}
		resolvers = append(resolvers, r)
	}
	stubs = map[string][]netip.AddrPort{}
	for _, s := range c.DNSStubDomains {
		domain, to, ok := strings.Cut(s, "=")
		if !ok || to == "" {
			return nil, nil, fmt.Errorf("--dns-stub-domain %q: want DOMAIN=ADDRESS,ADDRESS:PORT", s)
		}
		if msgs := validation.IsDNS1123Subdomain(strings.TrimSuffix(domain, ".")); len(msgs) > 0 {
			return nil, nil, fmt.Errorf("--dns-stub-domain %q: %s", s, strings.Join(msgs, "; "))
		}
		for r := range strings.SplitSeq(to, ",") {
			a, err := parseResolver(r)
			if err != nil {
				return nil, nil, fmt.Errorf("--dns-stub-domain %q: %w", s, err)
			}
			stubs[domain] = append(stubs[domain], a)
		}
	}
	return resolvers, stubs, nil
}

// parseResolver parses ADDRESS or ADDRESS:PORT; the port is 53 unless it is given.
func parseResolver(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not the address of a DNS server, such as 192.0.2.1 or 192.0.2.1:53", s)
	}
	return a, nil
}

func (c *Config) validateDNS(bad func(string, ...any)) {
	if c.DNS != DNSBuiltin && c.DNS != DNSNone {
		bad("--dns %q must be %s or %s", c.DNS, DNSBuiltin, DNSNone)
	}
	if _, _, err := c.DNSAddress(); err != nil {
		bad("%w", err)
	}
	if _, _, err := c.DNSServers(); err != nil {
		bad("%w", err)
	}
}
