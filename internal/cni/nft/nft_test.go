package nft

import (
	"errors"
	"path/filepath"
	"reflect"
	"testing"

	"wherry.dev/internal/netns"
)

// namespace returns the path of a network namespace that the test has for itself.
func namespace(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return netns.Path(dir, netns.Net)
}

// TestElements writes elements of all kinds in use, and finds them again.
func TestElements(t *testing.T) {
	err := netns.Do(func() error {
		if es, err := Elements(t.Context(), "inet", "t"); err != nil || es != nil {
			t.Errorf("of no table: %v, %v", es, err)
		}
		err := Run(t.Context(), `table inet t {
map any { type inet_proto . inet_service : ipv4_addr . inet_service; }
set near { type ipv4_addr . ipv4_addr; flags interval; }
set near6 { type ipv6_addr . ipv6_addr; flags interval; }
set links { type ifname; }
set plain { type ipv4_addr; }
}
add element inet t any { tcp . 80 comment "a" : 10.0.0.1 . 80, sctp . 81 : 10.0.0.2 . 81 }
add element inet t near { 10.0.0.0/16 . 10.0.0.1 comment "b" }
add element inet t near { 0.0.0.0/0 . 10.0.0.2 comment "b" }
add element inet t near6 { fd00::/64 . fd00::1 comment "b" }
add element inet t links { "eth0" }
add element inet t plain { 10.0.0.1 comment "c" }
`)
		if err != nil {
			return err
		}
		es, err := Elements(t.Context(), "inet", "t")
		want := map[string]string{"any tcp . 80": "a", "near 10.0.0.0/16 . 10.0.0.1": "b", "near 0.0.0.0/0 . 10.0.0.2": "b",
			"near6 fd00::/64 . fd00::1": "b", "plain 10.0.0.1": "c"}
		got := map[string]string{}
		for _, e := range es {
			got[e.Set+" "+e.Key] = e.Comment
			if derr := Run(t.Context(), "delete element inet t "+e.Set+" { "+e.Key+" }\n"); derr != nil {
				t.Errorf("%+v cannot be named: %v", e, derr)
			}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
		err = Run(t.Context(), "create element inet t any { sctp . 81 comment \"x\" : 10.0.0.3 . 1 }\n")
		if !errors.Is(err, ErrExists) {
			t.Errorf("an element twice: %v", err)
		}
		if err := Run(t.Context(), "rubbish"); err == nil || errors.Is(err, ErrExists) {
			t.Errorf("rubbish: %v", err)
		}
		if err := DeleteTable(t.Context(), "inet", "t"); err != nil {
			return err
		}
		return DeleteTable(t.Context(), "inet", "t")
	}, namespace(t))
	if err != nil {
		t.Fatal(err)
	}
}

func FuzzParseElements(f *testing.F) {
	f.Add([]byte(`{"nftables":[{"map":{"name":"any","elem":[[{"elem":{"val":{"concat":["tcp",80]},"comment":"a"}},{"concat":["10.0.0.1",80]}]]}}]}`))
	f.Add([]byte(`{"nftables":[{"set":{"name":"near","elem":[{"elem":{"val":{"concat":[{"prefix":{"addr":"10.0.0.0","len":16}},"10.0.0.1"]},"comment":"b"}},"x",5]}}]}`))
	f.Add([]byte(`{"nftables":[{"metainfo":{}},{"set":{"name":"s","elem":[{}]}}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		es, err := parseElements(doc)
		for _, e := range es {
			if err == nil && e.Comment == "" {
				t.Errorf("%+v has no comment", e)
			}
		}
	})
}

func TestWhatDropsForwardedPackets(t *testing.T) {
	err := netns.Do(func() error {
		if got, err := Dropping(t.Context()); err != nil || got != nil {
			t.Errorf("without a firewall: %v, %v", got, err)
		}
		err := Run(t.Context(), `table ip filter {
chain FORWARD { type filter hook forward priority filter; policy drop; }
chain INPUT { type filter hook input priority filter; policy drop; }
chain DOCKER { }
}
table inet firewall {
chain forward { type filter hook forward priority filter; policy accept; }
}
`)
		if err != nil {
			return err
		}
		got, err := Dropping(t.Context())
		if len(got) != 1 || got[0].String() != "ip filter FORWARD" {
			t.Errorf("%v", got)
		}
		return err
	}, namespace(t))
	if err != nil {
		t.Error(err)
	}
}
