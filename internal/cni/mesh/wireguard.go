package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"wherry.dev/internal/record"
)

// wireguardPort is where nodes listen for each other: WireGuard's usual one.
const wireguardPort = 51820

// ErrNoWireGuard means that the kernel has none.
var ErrNoWireGuard = errors.New("this kernel has no WireGuard: load it (modprobe wireguard), or choose another --network-mode")

// CheckWireGuard returns ErrNoWireGuard if the kernel has none.
func CheckWireGuard() error {
	probe := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("whp-%d", os.Getpid())}}
	err := netlink.LinkAdd(probe)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoWireGuard
	}
	if err != nil {
		return fmt.Errorf("WireGuard: %w", err)
	}
	return netlink.LinkDel(probe)
}

// LoadKey returns the private key in a file, which it makes, with a new one, if it is not there.
func LoadKey(file string) (wgtypes.Key, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return key, err
		}
		return key, record.WriteFile(file, []byte(key.String()+"\n"), 0o600)
	}
	if err != nil {
		return wgtypes.Key{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		return key, fmt.Errorf("%s is no key of WireGuard; remove it, and a new one is made: %w", file, err)
	}
	return key, nil
}

// wireguard makes our link as it has to be, with all peers.
func (k *kernel) wireguard(own Node, peers map[wgtypes.Key]peer) (netlink.Link, error) {
	under, err := linkOf(own.Addresses[0])
	if err != nil {
		return nil, err
	}
	want := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: k.link, MTU: tunnelMTU(k.mode, under.Attrs().MTU, own.Addresses[0])}}
	have, err := k.tunnel(want, func(have netlink.Link) bool { return have.Type() == want.Type() })
	if err != nil {
		return nil, err
	}
	return have, errors.Join(k.addresses(have, own), k.applyPeers(peers))
}

// applyPeers tells WireGuard who the peers are, as far as it does not know.
func (k *kernel) applyPeers(want map[wgtypes.Key]peer) error {
	c, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	have, err := c.Device(k.link)
	if err != nil {
		return err
	}
	var change wgtypes.Config
	if have.PrivateKey != k.key {
		change.PrivateKey = &k.key
	}
	if have.ListenPort != wireguardPort {
		change.ListenPort = new(wireguardPort)
	}
	missing := maps.Clone(want)
	for i := range have.Peers {
		h := &have.Peers[i]
		switch w, wanted := missing[h.PublicKey]; {
		case !wanted:
			change.Peers = append(change.Peers, wgtypes.PeerConfig{PublicKey: h.PublicKey, Remove: true})
		case w.is(h):
			delete(missing, h.PublicKey)
		}
	}
	for key, p := range missing {
		change.Peers = append(change.Peers, wgtypes.PeerConfig{
			PublicKey: key, ReplaceAllowedIPs: true, AllowedIPs: ipNets(p.Ranges), Endpoint: net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Outer, wireguardPort)),
		})
	}
	if change.PrivateKey == nil && change.ListenPort == nil && len(change.Peers) == 0 {
		return nil
	}
	err = c.ConfigureDevice(k.link, change)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("somebody else uses the UDP port %d: %w", wireguardPort, err)
	}
	return err
}

// is reports whether WireGuard has a peer as it should be.
func (p peer) is(have *wgtypes.Peer) bool {
	if have.Endpoint == nil || have.Endpoint.AddrPort() != netip.AddrPortFrom(p.Outer, wireguardPort) {
		return false
	}
	text := func(list []net.IPNet) []string {
		var out []string
		for i := range list {
			out = append(out, list[i].String())
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(text(have.AllowedIPs), text(ipNets(p.Ranges)))
}

func ipNets(list []netip.Prefix) (out []net.IPNet) {
	for _, p := range list {
		out = append(out, *ipNet(p.Masked()))
	}
	return out
}
