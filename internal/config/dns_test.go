package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestDNSAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string // "" if there is no built-in DNS
		err    string
	}{
		"by default":         {func(*Config) {}, "10.96.0.10", ""},
		"another network":    {func(c *Config) { c.NodeIP, c.ServiceCIDR = "2001:db8::9", "fd00:96::/112" }, "fd00:96::a", ""},
		"of two networks":    {func(c *Config) { c.ServiceCIDR = "10.96.0.0/16,fd00:96::/112" }, "10.96.0.10", ""},
		"a small network":    {func(c *Config) { c.ServiceCIDR = "10.96.0.0/29" }, "", "--service-cidr 10.96.0.0/29 is too small"},
		"small, without DNS": {func(c *Config) { c.ServiceCIDR, c.DNS = "10.96.0.0/29", DNSNone }, "", ""},
		"somebody else's":    {func(c *Config) { c.ClusterDNS = []string{"192.0.2.1"} }, "", ""},
		"a word":             {func(c *Config) { c.DNS = "coredns" }, "", `--dns "coredns" must be builtin or none`},
		"a resolver's name":  {func(c *Config) { c.DNSResolvers = []string{"ns.example"} }, "", `"ns.example" is not the address of a DNS server`},
		"port 0":             {func(c *Config) { c.DNSResolvers = []string{"192.0.2.1:0"} }, "", "is not the address"},
		"no servers":         {func(c *Config) { c.DNSStubDomains = []string{"corp="} }, "", "want DOMAIN=ADDRESS"},
		"no domain":          {func(c *Config) { c.DNSStubDomains = []string{"a b=192.0.2.1"} }, "", `--dns-stub-domain "a b=192.0.2.1"`},
	} {
		c := Default()
		c.NodeName, c.NodeIP = "one", "192.0.2.9"
		tt.change(&c)
		err := c.validate()
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", name, err, tt.err)
			}
			continue
		}
		ip, ok, addrErr := c.DNSAddress()
		if err != nil || addrErr != nil || ok != (tt.want != "") || ok && ip.String() != tt.want {
			t.Errorf("%s: %v %v, %v, %v", name, ip, ok, err, addrErr)
		}
	}
}

func TestDNSServers(t *testing.T) {
	c := Default()
	c.DNSResolvers = []string{"192.0.2.1", "[2001:db8::1]:5353", "2001:db8::2"}
	c.DNSStubDomains = []string{"corp.example=192.0.2.3,192.0.2.4:54", "lab.=192.0.2.5"}
	resolvers, stubs, err := c.DNSServers()
	if err != nil || len(resolvers) != 3 || resolvers[1] != netip.MustParseAddrPort("[2001:db8::1]:5353") || resolvers[2].Port() != 53 {
		t.Errorf("%v, %v", resolvers, err)
	}
	if len(stubs["corp.example"]) != 2 || stubs["corp.example"][1].Port() != 54 || len(stubs["lab."]) != 1 {
		t.Errorf("%v", stubs)
	}
}
