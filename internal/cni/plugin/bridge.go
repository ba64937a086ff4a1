package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/netns"
)

// bridgeConf has upstream's fields. Those that are not implemented are refused: vlan and
// vlanTrunk, macspoofchk, disableContainerInterface, preserveDefaultVlan.
type bridgeConf struct {
	types.PluginConf
	Bridge           string          `json:"bridge"`
	IsGateway        bool            `json:"isGateway"`
	IsDefaultGateway bool            `json:"isDefaultGateway"`
	ForceAddress     bool            `json:"forceAddress"`
	IPMasq           bool            `json:"ipMasq"`
	IPMasqBackend    string          `json:"ipMasqBackend"`
	MTU              int             `json:"mtu"`
	HairpinMode      bool            `json:"hairpinMode"`
	PromiscMode      bool            `json:"promiscMode"`
	EnableDAD        bool            `json:"enabledad"`
	PortIsolation    bool            `json:"portIsolation"`
	RuntimeConfig    json.RawMessage `json:"runtimeConfig"`
	Args             struct {
		CNI struct {
			Mac string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`

	mac net.HardwareAddr
}

// bridgeCapabilities are what a runtime may pass; the last two are for host-local.
type bridgeCapabilities struct {
	Mac      string          `json:"mac"`
	IPs      json.RawMessage `json:"ips"`
	IPRanges json.RawMessage `json:"ipRanges"`
}

const defaultBridge = "cni0"

func readBridge(args *skel.CmdArgs) (*bridgeConf, error) {
	c := &bridgeConf{Bridge: defaultBridge}
	if err := readConf(args.StdinData, c); err != nil {
		return nil, err
	}
	switch {
	case c.IPMasqBackend != "" && c.IPMasqBackend != "nftables":
		return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unsupported field ipMasqBackend: %q; this plugin has \"nftables\"", c.IPMasqBackend), "")
	case c.HairpinMode && c.PromiscMode:
		return nil, invalid("cannot set hairpin mode and promiscuous mode at the same time")
	case c.IPMasq && c.IPAM.Type == "":
		return nil, invalid("ipMasq needs addresses, but ipam is not set")
	}
	c.IsGateway = c.IsGateway || c.IsDefaultGateway
	return c, c.readMAC(args.Args)
}

// readMAC looks where upstream looks; the runtime's setting comes last.
func (c *bridgeConf) readMAC(env string) error {
	var fromEnv struct {
		types.CommonArgs
		MAC types.UnmarshallableString
	}
	if env != "" {
		if err := types.LoadArgs(env, &fromEnv); err != nil {
			return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
		}
	}
	mac := string(fromEnv.MAC)
	if c.Args.CNI.Mac != "" {
		mac = c.Args.CNI.Mac
	}
	if len(c.RuntimeConfig) > 0 {
		caps := bridgeCapabilities{}
		if err := json.Unmarshal(c.RuntimeConfig, &caps); err != nil {
			return types.NewError(types.ErrDecodingFailure, "cannot read runtimeConfig: "+err.Error(), "")
		}
		if c.IPAM.Type == "" || c.IPAM.Type == hostLocal { // others know their own abilities
			if err := refuseUnknown(c.RuntimeConfig, "runtimeConfig.", caps); err != nil {
				return err
			}
		}
		if caps.Mac != "" {
			mac = caps.Mac
		}
	}
	if mac == "" {
		return nil
	}
	var err error
	if c.mac, err = net.ParseMAC(mac); err != nil || len(c.mac) != 6 {
		return invalid("mac %q is not an Ethernet address", mac)
	}
	return nil
}

// hostLink returns the name of the bridge's side of the veth pair. It is derived, so that the
// link can be found without any record.
func hostLink(args *skel.CmdArgs) string {
	h := sha256.Sum256([]byte(args.ContainerID + "/" + args.IfName))
	return "veth" + hex.EncodeToString(h[:])[:unix.IFNAMSIZ-1-len("veth")]
}

// bridgeAdd takes these steps:
//
//  1. make the bridge
//  2. get addresses from the IPAM plugin
//  3. set the bridge's own addresses, and enable forwarding
//  4. make the veth pair; its far side is created and configured in the container's namespace
//  5. set up masquerading
func bridgeAdd(ctx context.Context, args *skel.CmdArgs) (err error) {
	c, err := readBridge(args)
	if err != nil {
		return err
	}
	conn, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := taken(args); err != nil {
		return err
	}
	br, err := c.ensureBridge(conn)
	if err != nil {
		return err
	}
	failpoint.At("bridge-made")
	r := &result.Result{CNIVersion: result.ImplementedSpecVersion}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.undo(context.WithoutCancel(ctx), conn, args))
		}
	}()
	if c.IPAM.Type != "" {
		if r, err = ipamAdd(ctx, c.IPAM.Type, args); err != nil {
			return err
		}
		if len(r.IPs) == 0 {
			return errors.New("IPAM plugin returned missing IP config")
		}
		c.addGateways(r)
		if err := c.ensureGateways(conn, br, r); err != nil {
			return err
		}
	}
	failpoint.At("bridge-gateways")
	if err := c.plug(conn, br, args, r); err != nil {
		return err
	}
	failpoint.At("bridge-plugged")
	if c.IPMasq {
		if err := addMasquerade(ctx, tag(c.Name, args.ContainerID, args.IfName), prefixes(r)); err != nil {
			return err
		}
	}
	failpoint.At("bridge-masqueraded")
	if !c.DNS.IsEmpty() {
		r.DNS = c.DNS
	}
	return types.PrintResult(r, c.CNIVersion)
}

// taken refuses a second ADD, which would take the container's interface away. What a crash left
// is removed by the DEL that follows it.
func taken(args *skel.CmdArgs) error {
	index := 0
	err := netns.Do(func() (err error) {
		index, err = rtnl.LinkIndex(args.IfName)
		return err
	}, args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("failed to open netns %q: %v", args.Netns, err), "")
	}
	if index != 0 {
		return fmt.Errorf("container veth name provided (%s) already exists", args.IfName)
	}
	return nil
}

// addGateways adds what follows from the addresses: gateways and default routes.
func (c *bridgeConf) addGateways(r *result.Result) {
	done := map[bool]bool{} // by family
	for _, ip := range r.IPs {
		ip.Interface = new(2) // the container's
		v4 := ip.Address.IP.To4() != nil
		if ip.Gateway == nil && c.IsGateway {
			ip.Gateway = toPrefix(ip.Address).Masked().Addr().Next().AsSlice()
		}
		if !c.IsDefaultGateway || done[v4] {
			continue
		}
		done[v4] = true
		all := ipNet(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		if v4 {
			all = ipNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		}
		has := false
		for _, route := range r.Routes {
			has = has || route.GW != nil && route.Dst.String() == all.String()
		}
		if !has {
			r.Routes = append(r.Routes, &types.Route{Dst: all, GW: ip.Gateway})
		}
	}
}

// plug makes the veth pair and completes the result.
func (c *bridgeConf) plug(conn *rtnl.Conn, br *netlink.Bridge, args *skel.CmdArgs, r *result.Result) error {
	port := rtnl.Port{
		Host: hostLink(args), Bridge: br.Index, Hairpin: c.HairpinMode, Isolated: c.PortIsolation,
		Name: args.IfName, MAC: c.mac, MTU: c.MTU, Addrs: prefixes(r), DAD: c.EnableDAD,
	}
	if port.MAC == nil && len(port.Addrs) > 0 {
		port.MAC = rtnl.MACOf(port.Addrs[0].Addr())
	}
	var err error
	if port.Routes, err = routes(r); err != nil {
		return err
	}
	if err := conn.Plug(args.Netns, port); err != nil {
		return fmt.Errorf("connect %s to bridge %s: %w", args.IfName, c.Bridge, err)
	}
	r.Interfaces = []*result.Interface{{Name: c.Bridge}, {Name: port.Host}, {Name: args.IfName, Sandbox: args.Netns}}
	for i, l := range r.Interfaces {
		read := func() error {
			link, err := net.InterfaceByName(l.Name)
			if err != nil {
				return fmt.Errorf("interface %s: %w", l.Name, err)
			}
			r.Interfaces[i].Mac = link.HardwareAddr.String()
			return nil
		}
		if l.Sandbox != "" {
			err = netns.Do(read, l.Sandbox)
		} else {
			err = read()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undo undoes a failed ADD.
func (c *bridgeConf) undo(ctx context.Context, conn *rtnl.Conn, args *skel.CmdArgs) error {
	errs := []error{conn.DeleteByName(hostLink(args))}
	if c.IPMasq {
		errs = append(errs, removeTagged(ctx, masqTable, tag(c.Name, args.ContainerID, args.IfName)))
	}
	if c.IPAM.Type != "" {
		errs = append(errs, ipamCall(ctx, c.IPAM.Type, args, ipamDel))
	}
	return errors.Join(errs...)
}

// bridgeDel removes the link before it releases the address.
func bridgeDel(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readBridge(args)
	if err != nil {
		return err
	}
	conn, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := unplug(args); err != nil {
		return err
	}
	failpoint.At("bridge-unplugged")
	return c.undo(ctx, conn, args)
}

// unplug removes the container's side: another plugin of the same name may have made the pair,
// and it names the host's side differently.
func unplug(args *skel.CmdArgs) error {
	if ok, err := netns.Pinned(args.Netns); err != nil || !ok {
		return err
	}
	return netns.Do(func() error {
		c, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return c.DeleteByName(args.IfName)
	}, args.Netns)
}

func bridgeGC(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readBridge(args)
	if err != nil {
		return err
	}
	valid, err := validAttachments(args.StdinData)
	if err != nil {
		return err
	}
	var errs []error
	if c.IPMasq {
		errs = append(errs, collectTagged(ctx, masqTable, c.Name, valid))
	}
	if c.IPAM.Type != "" {
		errs = append(errs, ipamCall(ctx, c.IPAM.Type, args, ipamGC))
	}
	return errors.Join(errs...)
}

func bridgeStatus(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readBridge(args)
	if err != nil {
		return err
	}
	if c.IPMasq {
		if err := nftInstalled(); err != nil {
			return unavailable(err)
		}
	}
	if c.IPAM.Type == "" {
		return nil
	}
	return ipamCall(ctx, c.IPAM.Type, args, ipamStatus)
}
