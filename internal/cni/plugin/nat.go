package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"wherry.dev/internal/cni/nft"
)

// masqTable is where bridge's ipMasq is done, for all networks.
const masqTable = "wherry-masq"

// tag marks the elements of an attachment in nftables. nft takes up to 127 bytes.
func tag(network, container, ifname string) string {
	return shorten(network, 32) + "/" + shorten(container, 72) + "/" + ifname
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	h := sha256.Sum256([]byte(s))
	return s[:most-17] + "-" + hex.EncodeToString(h[:8])
}

func nftInstalled() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("nft was not found in PATH; install the package nftables")
	}
	return nil
}

// suffix is what sets of a family have at the end of their names.
func suffix(a netip.Addr) (ip, addr string) {
	if a.Is4() {
		return "ip", "ipv4_addr"
	}
	return "ip6", "ipv6_addr"
}

// put writes that an element is the tag's: without the detour, one that somebody else
// left there would keep their tag, and go with it.
func put(b *strings.Builder, table, set, key, tag string) {
	for _, verb := range []string{"add", "delete"} {
		fmt.Fprintf(b, "%s element inet %s %s { %s }\n", verb, table, set, key)
	}
	fmt.Fprintf(b, "add element inet %s %s { %s comment %q }\n", table, set, key, tag)
}

// addMasquerade hides the addresses behind the host's, for what leaves their network.
func addMasquerade(ctx context.Context, tag string, addrs []netip.Prefix) error {
	var b strings.Builder
	fmt.Fprintf(&b, `table inet %s {
set pods-ip { type ipv4_addr; }
set pods-ip6 { type ipv6_addr; }
set near-ip { type ipv4_addr . ipv4_addr; flags interval; }
set near-ip6 { type ipv6_addr . ipv6_addr; flags interval; }
chain postrouting { type nat hook postrouting priority srcnat; policy accept; }
}
flush chain inet %s postrouting
table inet %s {
chain postrouting {
ip saddr . ip daddr @near-ip return
ip6 saddr . ip6 daddr @near-ip6 return
ip saddr @pods-ip ip daddr != 224.0.0.0/4 masquerade
ip6 saddr @pods-ip6 ip6 daddr != ff00::/8 masquerade
}
}
`, masqTable, masqTable, masqTable)
	for _, p := range addrs {
		ip, _ := suffix(p.Addr())
		put(&b, masqTable, "pods-"+ip, p.Addr().String(), tag)
		put(&b, masqTable, "near-"+ip, p.Addr().String()+" . "+p.Masked().String(), tag)
	}
	if err := nft.Run(ctx, b.String()); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// removeTagged removes what an attachment has in a table.
func removeTagged(ctx context.Context, table, tag string) error {
	return removeElements(ctx, table, func(t string) bool { return t == tag })
}

// collectTagged removes what attachments of a network have in a table that are not
// among the valid ones.
func collectTagged(ctx context.Context, table, network string, valid []owner) error {
	keep := map[string]bool{}
	for _, o := range valid {
		keep[tag(network, o.id, o.ifname)] = true
	}
	prefix := shorten(network, 32) + "/"
	return removeElements(ctx, table, func(t string) bool { return strings.HasPrefix(t, prefix) && !keep[t] })
}

func removeElements(ctx context.Context, table string, which func(tag string) bool) error {
	es, err := nft.Elements(ctx, "inet", table)
	if err != nil {
		return fmt.Errorf("look at nftables table %s: %w", table, err)
	}
	var b strings.Builder
	for _, e := range es {
		if which(e.Comment) {
			fmt.Fprintf(&b, "delete element inet %s %s { %s }\n", table, e.Set, e.Key)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	if err := nft.Run(ctx, b.String()); err != nil {
		return fmt.Errorf("clear nftables table %s: %w", table, err)
	}
	return nil
}

// checkTagged tells whether an attachment still has that many elements in a table.
func checkTagged(ctx context.Context, table, tag string, want int) error {
	es, err := nft.Elements(ctx, "inet", table)
	if err != nil {
		return fmt.Errorf("look at nftables table %s: %w", table, err)
	}
	have := 0
	for _, e := range es {
		if e.Comment == tag {
			have++
		}
	}
	if have < want {
		return fmt.Errorf("nftables table %s has %d elements for %s, of %d", table, have, tag, want)
	}
	return nil
}
