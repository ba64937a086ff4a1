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

// masqTable is the table for the bridge plugin's ipMasq, for all networks.
const masqTable = "wherry-masq"

// tag returns the comment on an attachment's elements in nftables. nft takes up to 127 bytes.
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

// suffix returns the end of the names of an IP family's sets.
func suffix(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

// elements are what an attachment gets in a table. The kernel adds to an existing table in 1 ms.
// A transaction that also removes something, such as the one that renders the table, takes 15 ms
// (it waits for RCU).
type elements struct {
	table, tag string
	render     func(*strings.Builder) // writes the table, or brings it up to date
	own        []element              // nobody else may have these
	shared     []element              // taken over from their previous owner
	untagged   []element              // permanent
}

type element struct{ set, key, value string }

func (e element) write(b *strings.Builder, verb, table, tag string) {
	fmt.Fprintf(b, "%s element inet %s %s { %s", verb, table, e.set, e.key)
	if tag != "" {
		fmt.Fprintf(b, " comment %q", tag)
	}
	if e.value != "" {
		b.WriteString(" : " + e.value)
	}
	b.WriteString(" }\n")
}

// add gives the attachment its elements. nft.ErrExists means that somebody else has one of its
// own elements.
func (es elements) add(ctx context.Context) error {
	err := nft.Run(ctx, es.script(false))
	if errors.Is(err, nft.ErrNotFound) || errors.Is(err, nft.ErrExists) {
		err = nft.Run(ctx, es.script(true))
	}
	return err
}

func (es elements) script(whole bool) string {
	var b strings.Builder
	if whole {
		es.render(&b)
	}
	for _, e := range es.own {
		e.write(&b, "create", es.table, es.tag)
	}
	for _, e := range es.shared {
		if whole { // otherwise it would keep the tag of its previous owner, and be removed with it
			e.write(&b, "add", es.table, "")
			e.write(&b, "delete", es.table, "")
		}
		e.write(&b, "create", es.table, es.tag)
	}
	for _, e := range es.untagged {
		e.write(&b, "add", es.table, "")
	}
	return b.String()
}

// addMasquerade hides the addresses behind the host's for traffic that leaves their network.
func addMasquerade(ctx context.Context, tag string, addrs []netip.Prefix) error {
	es := elements{table: masqTable, tag: tag, render: renderMasquerade}
	for _, p := range addrs {
		es.shared = append(es.shared, element{set: "pods-" + suffix(p.Addr()), key: p.Addr().String()},
			element{set: "near-" + suffix(p.Addr()), key: p.Addr().String() + " . " + p.Masked().String()})
	}
	if err := es.add(ctx); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

func renderMasquerade(b *strings.Builder) {
	fmt.Fprintf(b, `table inet %s {
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
}

// removeTagged removes what an attachment has in a table.
func removeTagged(ctx context.Context, table, tag string) error {
	return removeElements(ctx, table, func(t string) bool { return t == tag })
}

// collectTagged removes what a network's attachments have in a table, except for the valid ones.
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
		return fmt.Errorf("list nftables table %s: %w", table, err)
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
		return fmt.Errorf("delete elements of nftables table %s: %w", table, err)
	}
	return nil
}

// checkTagged returns an error if an attachment no longer has want elements in a table.
func checkTagged(ctx context.Context, table, tag string, want int) error {
	es, err := nft.Elements(ctx, "inet", table)
	if err != nil {
		return fmt.Errorf("list nftables table %s: %w", table, err)
	}
	have := 0
	for _, e := range es {
		if e.Comment == tag {
			have++
		}
	}
	if have < want {
		return fmt.Errorf("nftables table %s has %d elements for %s, want %d", table, have, tag, want)
	}
	return nil
}
