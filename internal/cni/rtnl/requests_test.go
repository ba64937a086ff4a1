package rtnl

import (
	"net/netip"
	"testing"
)

func TestLastAddr(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.0/8": "10.255.255.255", "10.1.2.0/30": "10.1.2.3", "fd00::/120": "fd00::ff"} {
		if got := LastAddr(netip.MustParsePrefix(in)); got.String() != want {
			t.Errorf("LastAddr(%s) = %s, want %s", in, got, want)
		}
	}
}
