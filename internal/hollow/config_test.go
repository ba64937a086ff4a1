package hollow

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestFlagsThatCannotBeAreNamedWithARemedy(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--nodes 0: give the number":                           func(c *Config) { c.Nodes = 0 },
		"use small letters":                                    func(c *Config) { c.NamePrefix = "Hollow_" },
		"shorten the prefix":                                   func(c *Config) { c.NamePrefix = strings.Repeat("h", 63) },
		"--zones: name at least one":                           func(c *Config) { c.Zones = nil },
		`--zones: "a b" cannot be`:                             func(c *Config) { c.Zones = []string{"a b"} },
		`--region: "" cannot be`:                               func(c *Config) { c.Region = "" },
		"--node-labels a b=c":                                  func(c *Config) { c.Labels = map[string]string{"a b": "c"} },
		"--cpu 0: a node needs some":                           func(c *Config) { c.CPU = resource.Quantity{} },
		"--memory -1: a node needs some":                       func(c *Config) { c.Memory = resource.MustParse("-1") },
		"--pods 0: give":                                       func(c *Config) { c.Pods = 0 },
		"--node-cidr fd00::/8: give a network of IPv4":         func(c *Config) { c.NodeCIDR = netip.MustParsePrefix("fd00::/8") },
		"overlap; move one":                                    func(c *Config) { c.NodeCIDR = netip.MustParsePrefix("10.130.0.0/16") },
		"has no 300 addresses":                                 func(c *Config) { c.Nodes, c.NodeCIDR = 300, netip.MustParsePrefix("10.192.0.0/24") },
		"has no room for 300 nodes with a /24 each":            func(c *Config) { c.Nodes, c.PodCIDR = 300, netip.MustParsePrefix("10.128.0.0/16") },
		"--heartbeat 1.5s: leases are counted in seconds":      func(c *Config) { c.Heartbeat = 1500 * time.Millisecond },
		"--status-period 1s is shorter than --heartbeat 10s":   func(c *Config) { c.StatusEvery = time.Second },
		"--pod-start-delay -1s: give 0 or more":                func(c *Config) { c.PodStartDelay = -time.Second },
		"--parallel 0: give the number of nodes that start at": func(c *Config) { c.Parallel = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, nodes := range []int{1, 2, 5000, 16384} {
		cfg := DefaultConfig()
		cfg.Nodes = nodes
		if err := cfg.Validate(); err != nil {
			t.Errorf("%d nodes: %v", nodes, err)
		}
	}
}

func TestNodesShareNoAddressWithOthersOrTheirPods(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Nodes = 5000
	seen := map[netip.Addr]bool{}
	var last netip.Prefix
	for i := range cfg.Nodes {
		ip, pods := cfg.address(i), cfg.podNetwork(i)
		if seen[ip] || !cfg.NodeCIDR.Contains(ip) || !cfg.PodCIDR.Contains(pods.Addr()) || pods.Masked() != pods || last.IsValid() && last.Overlaps(pods) {
			t.Fatalf("node %d has %s and %s, the one before %s", i, ip, pods, last)
		}
		seen[ip], last = true, pods
	}
}

func TestAddressesAreGivenToOneAtATimeAndAgainAsLateAsPossible(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("10.0.0.0/28"))
	a.keep(netip.MustParseAddr("10.0.0.3"))
	var given []netip.Addr
	for range 16 {
		ip, err := a.take()
		if err != nil {
			break
		}
		given = append(given, ip)
	}
	if len(given) != 12 || given[0].String() != "10.0.0.2" || given[1].String() != "10.0.0.4" || given[11].String() != "10.0.0.14" {
		t.Errorf("gave %v", given)
	}
	a.free(given[2])
	a.free(given[5])
	first, _ := a.take()
	a.free(first)
	if second, err := a.take(); err != nil || second == first {
		t.Errorf("gave %s at once again, %v", second, err)
	}
}
