package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"wherry.dev/internal/api/cluster"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func node(name string, age int, address string, ranges ...string) Node {
	n := Node{Name: name, Created: time.Unix(int64(1000-age), 0), Ranges: prefixes(ranges...)}
	for a := range strings.SplitSeq(address, ",") {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

// The machines of 192.0.2.0/24 and 2001:db8::/64 are on the link, those of 198.51.100.0/24 behind a router, 203.0.113.0/24
// is nowhere.
func testWay(a netip.Addr) (Way, error) {
	switch {
	case a == netip.MustParseAddr("192.0.2.1"):
		return Way{Link: 1, Local: true}, nil
	case netip.MustParsePrefix("192.0.2.0/24").Contains(a), netip.MustParsePrefix("2001:db8::/64").Contains(a):
		return Way{Link: 7}, nil
	case netip.MustParsePrefix("198.51.100.0/24").Contains(a):
		return Way{Link: 7, Gateway: netip.MustParseAddr("192.0.2.254")}, nil
	}
	return Way{}, errors.New("network is unreachable")
}

func TestWaysToNodes(t *testing.T) {
	self := node("self", 100, "192.0.2.1", "10.244.0.0/24")
	for name, c := range map[string]struct {
		mode  string
		nodes []Node
		want  string // of routes and ends, sorted
		wrong string
	}{
		"on the link":                         {cluster.ModeAuto, []Node{node("b", 1, "192.0.2.2", "10.244.1.0/24")}, "10.244.1.0/24 via 192.0.2.2 link 7", ""},
		"behind a router":                     {cluster.ModeAuto, []Node{node("b", 1, "198.51.100.2", "10.244.1.0/24")}, "10.244.1.0/24 via 10.244.1.0 link 0 to 198.51.100.2", ""},
		"behind a router that knows":          {cluster.ModeRoutes, []Node{node("b", 1, "198.51.100.2", "10.244.1.0/24")}, "10.244.1.0/24 via 192.0.2.254 link 7", ""},
		"always by the tunnel":                {cluster.ModeVXLAN, []Node{node("b", 1, "192.0.2.2", "10.244.1.0/24")}, "10.244.1.0/24 via 10.244.1.0 link 0 to 192.0.2.2", ""},
		"on this machine":                     {cluster.ModeVXLAN, []Node{node("b", 1, "192.0.2.1", "10.244.1.0/24")}, "", ""},
		"without a range yet":                 {cluster.ModeAuto, []Node{node("b", 1, "192.0.2.2")}, "", ""},
		"nowhere":                             {cluster.ModeAuto, []Node{node("b", 1, "203.0.113.2", "10.244.1.0/24")}, "", "unreachable"},
		"its second address":                  {cluster.ModeAuto, []Node{node("b", 1, "203.0.113.2,192.0.2.2", "10.244.1.0/24")}, "10.244.1.0/24 via 192.0.2.2 link 7", ""},
		"of another family":                   {cluster.ModeAuto, []Node{node("b", 1, "2001:db8::2", "10.244.1.0/24")}, "", "no address"},
		"outside of the cluster":              {cluster.ModeAuto, []Node{node("b", 1, "192.0.2.2", "10.9.0.0/24")}, "", "not in the cluster's networks"},
		"all of the cluster":                  {cluster.ModeAuto, []Node{node("b", 1, "192.0.2.2", "10.244.0.0/15")}, "", "not in the cluster's networks"},
		"a part of ours":                      {cluster.ModeAuto, []Node{node("b", 500, "192.0.2.2", "10.244.0.128/25")}, "", "overlaps 10.244.0.0/24"},
		"a part of one that was there before": {cluster.ModeAuto, []Node{node("a", 1, "192.0.2.3", "10.244.1.128/25"), node("b", 2, "192.0.2.2", "10.244.1.0/24")}, "10.244.1.0/24 via 192.0.2.2 link 7", "overlaps 10.244.1.0/24"},
		"two families": {cluster.ModeAuto, []Node{node("b", 1, "192.0.2.2,2001:db8::2", "10.244.1.0/24", "fd00:0:0:1::/64")},
			"10.244.1.0/24 via 192.0.2.2 link 7; fd00:0:0:1::/64 via 2001:db8::2 link 7", ""},
		"two families in a tunnel": {cluster.ModeVXLAN, []Node{node("b", 1, "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64")},
			"10.244.1.0/24 via 10.244.1.0 link 0 to 192.0.2.2; fd00:0:0:1::/64 via fd00:0:0:1:: link 0 to 192.0.2.2", ""},
	} {
		p := planner{self: "self", mode: c.mode, cluster: prefixes("10.244.0.0/16", "fd00::/48"), way: testWay}
		got, _, ok := p.plan(append(c.nodes, self))
		var texts []string
		for _, r := range sorted(got.routes) {
			text := fmt.Sprintf("%s via %s link %d", r.Range, r.Via, r.Link)
			if end, ok := got.ends[r.Via]; ok {
				text += " to " + end.Outer.String()
			}
			texts = append(texts, text)
		}
		if !ok || strings.Join(texts, "; ") != c.want {
			t.Errorf("%s: %v, want %s", name, texts, c.want)
		}
		var wrong string
		for _, err := range got.wrong {
			wrong += err.Error()
		}
		if (c.wrong == "") != (wrong == "") || !strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: wrong: %q, want %q", name, wrong, c.wrong)
		}
	}
}

func TestNothingIsPlannedBeforeTheNodeHasARange(t *testing.T) {
	p := planner{self: "self", mode: cluster.ModeAuto, cluster: prefixes("10.244.0.0/16"), way: testWay}
	if _, _, ok := p.plan([]Node{node("self", 1, "192.0.2.1"), node("b", 1, "192.0.2.2", "10.244.1.0/24")}); ok {
		t.Error("there is a plan")
	}
}
