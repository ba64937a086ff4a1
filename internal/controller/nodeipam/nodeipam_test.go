package nodeipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestRangesOfANetwork(t *testing.T) {
	n, err := newNetwork(prefix("10.244.0.0/22"), 24)
	if err != nil {
		t.Fatal(err)
	}
	n.use(prefix("10.244.1.128/25"), 1) // a part of the second
	for _, want := range []string{"10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"} {
		if got, err := n.take(); err != nil || got.String() != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	if _, err := n.take(); !errors.Is(err, errNoRange) {
		t.Errorf("%v", err)
	}
	n.use(prefix("10.244.2.0/24"), -1)
	if got, err := n.take(); err != nil || got.String() != "10.244.2.0/24" {
		t.Errorf("%v, %v", got, err)
	}
	n.use(prefix("10.0.0.0/8"), 1) // all of it, twice
	if n.free() != 0 || !n.taken(prefix("10.244.0.0/16")) || n.taken(prefix("10.245.0.0/16")) {
		t.Errorf("%+v", n)
	}
}

func TestRangesOfIPv6(t *testing.T) {
	n, err := newNetwork(prefix("fd00:10:244::/48"), 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"fd00:10:244::/64", "fd00:10:244:1::/64"} {
		if got, err := n.take(); err != nil || got.String() != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	if got := n.at(0xabcd); got.String() != "fd00:10:244:abcd::/64" || n.index(got.Addr()) != 0xabcd {
		t.Errorf("%v", got)
	}
}

// A range that was just given back is given again last: somebody may still send to its pods.
func TestARangeIsNotGivenAgainAtOnce(t *testing.T) {
	n, _ := newNetwork(prefix("10.0.0.0/16"), 24)
	first, _ := n.take()
	n.use(first, -1)
	if next, _ := n.take(); next == first {
		t.Errorf("%v", next)
	}
}

// Whatever nodes come with, and go: no two get ranges that overlap.
func TestNoAddressIsGivenTwice(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		n, err := newNetwork(prefix("10.128.0.0/18"), 24)
		if err != nil {
			t.Fatal(err)
		}
		var held []netip.Prefix
		for range 300 {
			switch {
			case r.IntN(3) == 0 && len(held) > 0:
				i := r.IntN(len(held))
				n.use(held[i], -1)
				held = append(held[:i], held[i+1:]...)
			case r.IntN(8) == 0: // of somebody else's making
				addr := netip.AddrFrom4([4]byte{10, byte(127 + r.IntN(3)), byte(r.IntN(256)), byte(r.IntN(256))})
				p := netip.PrefixFrom(addr, 16+r.IntN(14)).Masked()
				n.use(p, 1)
				held = append(held, p)
			default:
				p, err := n.take()
				if errors.Is(err, errNoRange) {
					continue
				}
				for _, h := range held {
					if h.Overlaps(p) {
						t.Fatalf("seed %d: %v was given, and somebody has %v", seed, p, h)
					}
				}
				held = append(held, p)
			}
		}
		for _, h := range held {
			n.use(h, -1)
		}
		if n.free() != n.count {
			t.Errorf("seed %d: %d of %d are free when all nodes are gone", seed, n.free(), n.count)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for text, o := range map[string]Options{
		"do not fit":              {Networks: []netip.Prefix{prefix("10.0.0.0/25")}},
		"more than 65536":         {Networks: []netip.Prefix{prefix("fd00::/40")}},
		"different IP families":   {Networks: []netip.Prefix{prefix("10.0.0.0/16"), prefix("10.1.0.0/16")}},
		"":                        {Networks: []netip.Prefix{prefix("10.0.0.0/24"), prefix("fd00::/64")}},
		"do not fit into the net": {Networks: []netip.Prefix{prefix("10.0.0.0/16"), prefix("fd00::/65")}},
	} {
		o.Bits4, o.Bits6 = Bits4, Bits6
		if err := o.Validate(); text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("want %q: %v", text, err)
		}
	}
}
