package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/safepath"
)

// hostLocalConf is what host-local reads from the configuration; the rest belongs to the plugin
// that calls it.
type hostLocalConf struct {
	Name          string          `json:"name"`
	IPAM          json.RawMessage `json:"ipam"`
	RuntimeConfig struct {
		IPRanges [][]rangeConf `json:"ipRanges"`
		IPs      []string      `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`

	ipam   ipamConf
	ranges []rangeSet
	wanted []netip.Addr // requested addresses
}

// ipamConf is the object "ipam".
type ipamConf struct {
	rangeConf
	Type       string            `json:"type"`
	Name       string            `json:"name"`
	Ranges     [][]rangeConf     `json:"ranges"`
	Routes     []json.RawMessage `json:"routes"`
	DataDir    string            `json:"dataDir"`
	ResolvConf string            `json:"resolvConf"`

	routes []*types.Route
}

func readHostLocal(stdin []byte, env string) (*hostLocalConf, error) {
	c := &hostLocalConf{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cannot read the network configuration: "+err.Error(), "")
	}
	if len(c.IPAM) == 0 {
		return nil, invalid("IPAM config missing 'ipam' key")
	}
	if err := c.readIPAM(); err != nil {
		return nil, err
	}
	if err := c.readWanted(env); err != nil {
		return nil, err
	}
	sets := c.ipam.Ranges
	if c.ipam.Subnet != "" { // the older form, from before there were sets
		sets = append([][]rangeConf{{c.ipam.rangeConf}}, sets...)
	}
	sets = append(c.RuntimeConfig.IPRanges, sets...)
	var err error
	if c.ranges, err = parseRanges(sets); err != nil {
		return nil, invalid("%v", err)
	}
	return c, nil
}

// readIPAM decodes the object and, in its lists, objects with fields of their own.
func (c *hostLocalConf) readIPAM() error {
	if err := json.Unmarshal(c.IPAM, &c.ipam); err != nil {
		return types.NewError(types.ErrDecodingFailure, "cannot read ipam: "+err.Error(), "")
	}
	if err := refuseUnknown(c.IPAM, "ipam.", &c.ipam); err != nil {
		return err
	}
	var lists struct{ Ranges [][]json.RawMessage }
	if err := json.Unmarshal(c.IPAM, &lists); err != nil {
		return types.NewError(types.ErrDecodingFailure, "cannot read ipam.ranges: "+err.Error(), "")
	}
	for _, set := range lists.Ranges {
		for _, r := range set {
			if err := refuseUnknown(r, "ipam.ranges.", rangeConf{}); err != nil {
				return err
			}
		}
	}
	for _, raw := range c.ipam.Routes {
		if err := refuseUnknown(raw, "ipam.routes.", types.Route{}); err != nil {
			return err
		}
		r := &types.Route{}
		if err := json.Unmarshal(raw, r); err != nil {
			return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("cannot read ipam.routes: %s: %v", raw, err), "")
		}
		c.ipam.routes = append(c.ipam.routes, r)
	}
	return nil
}

// readWanted collects the addresses requested by CNI_ARGS, args and the capability ips.
func (c *hostLocalConf) readWanted(env string) error {
	var fromEnv struct {
		types.CommonArgs
		IP types.UnmarshallableString
	}
	if env != "" {
		if err := types.LoadArgs(env, &fromEnv); err != nil {
			return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
		}
	}
	asked := append(c.Args.CNI.IPs, c.RuntimeConfig.IPs...)
	if fromEnv.IP != "" {
		asked = append(asked, string(fromEnv.IP))
	}
	for _, s := range asked {
		addr, _, _ := strings.Cut(s, "/")
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return invalid("requested IP %q: %v", s, err)
		}
		c.wanted = append(c.wanted, a.Unmap())
	}
	return nil
}

func hostLocalAdd(_ context.Context, args *skel.CmdArgs) error {
	r, err := hostLocalLease(args)
	if err != nil {
		return err
	}
	c, err := configVersion(args.StdinData)
	if err != nil {
		return err
	}
	return types.PrintResult(r, c)
}

func configVersion(stdin []byte) (string, error) {
	return (&version.ConfigDecoder{}).Decode(stdin)
}

// hostLocalLease does ADD without the protocol, for the plugin bridge.
func hostLocalLease(args *skel.CmdArgs) (*result.Result, error) {
	c, err := readHostLocal(args.StdinData, args.Args)
	if err != nil {
		return nil, err
	}
	r := &result.Result{CNIVersion: result.ImplementedSpecVersion, Routes: c.ipam.routes}
	if c.ipam.ResolvConf != "" {
		if r.DNS, err = readResolvConf(c.ipam.ResolvConf); err != nil {
			return nil, err
		}
	}
	s, err := openStore(c.ipam.DataDir, c.Name)
	if err != nil {
		return nil, err
	}
	defer s.close()
	o := owner{args.ContainerID, args.IfName}
	if held := s.leasesOf(o); len(held) > 0 {
		return nil, fmt.Errorf("%s has been allocated to %s, duplicate allocation is not allowed", held[0], o.id)
	}
	if r.IPs, err = c.allocate(s, o); err != nil {
		return nil, errors.Join(err, s.release(o))
	}
	failpoint.At("host-local-leased")
	return r, nil
}

// allocate leases an address from every set of ranges.
func (c *hostLocalConf) allocate(s *store, o owner) ([]*result.IPConfig, error) {
	var ips []*result.IPConfig
	wanted := c.wanted
	for i, set := range c.ranges {
		var a netip.Addr
		for j, w := range wanted {
			if set.find(w) != nil {
				a = w
				wanted = append(wanted[:j:j], wanted[j+1:]...)
				break
			}
		}
		a, err := s.lease(o, set, i, a)
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", i, err)
		}
		r := set.find(a)
		ips = append(ips, &result.IPConfig{Address: ipNet(netip.PrefixFrom(a, r.subnet.Bits())), Gateway: r.gateway.AsSlice()})
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("failed to allocate all requested IPs: %s is not in any range of the network", wanted[0])
	}
	return ips, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostLocalDel(_ context.Context, args *skel.CmdArgs) error {
	c, err := readHostLocal(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	s, err := openStore(c.ipam.DataDir, c.Name)
	if err != nil {
		return err
	}
	defer s.close()
	return s.release(owner{args.ContainerID, args.IfName})
}

func hostLocalCheck(_ context.Context, args *skel.CmdArgs) error {
	c, err := readHostLocal(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	s, err := openStore(c.ipam.DataDir, c.Name)
	if err != nil {
		return err
	}
	defer s.close()
	held := s.leasesOf(owner{args.ContainerID, args.IfName})
	for _, set := range c.ranges {
		if !set.holdsOne(held) {
			return fmt.Errorf("host-local: Failed to find address added by container %v in range set %s", args.ContainerID, set)
		}
	}
	return nil
}

func hostLocalGC(_ context.Context, args *skel.CmdArgs) error {
	c, err := readHostLocal(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	valid, err := validAttachments(args.StdinData)
	if err != nil {
		return err
	}
	s, err := openStore(c.ipam.DataDir, c.Name)
	if err != nil {
		return err
	}
	defer s.close()
	return s.collect(valid)
}

// validAttachments reads GC's list. It is required: without it GC would remove everything.
func validAttachments(stdin []byte) ([]owner, error) {
	var list struct {
		Valid *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(stdin, &list); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cannot read cni.dev/valid-attachments: "+err.Error(), "")
	}
	if list.Valid == nil {
		return nil, invalid("GC needs cni.dev/valid-attachments")
	}
	var valid []owner
	for _, a := range *list.Valid {
		valid = append(valid, owner{a.ContainerID, a.IfName})
	}
	return valid, nil
}

func hostLocalStatus(_ context.Context, args *skel.CmdArgs) error {
	c, err := readHostLocal(args.StdinData, "")
	if err != nil {
		return err
	}
	s, err := openStore(c.ipam.DataDir, c.Name)
	if err != nil {
		return unavailable(err)
	}
	s.close()
	return nil
}

// readResolvConf parses a file in the format of resolv.conf(5).
func readResolvConf(path string) (types.DNS, error) {
	var d types.DNS
	doc, err := safepath.ReadFile(path, safepath.ConfigSize)
	if err != nil {
		return d, fmt.Errorf("ipam.resolvConf: %w", err)
	}
	for line := range strings.Lines(string(doc)) {
		f := strings.Fields(line)
		if len(f) < 2 || strings.HasPrefix(f[0], "#") || strings.HasPrefix(f[0], ";") {
			continue
		}
		switch f[0] {
		case "nameserver":
			d.Nameservers = append(d.Nameservers, f[1])
		case "domain":
			d.Domain = f[1]
		case "search":
			d.Search = append(d.Search, f[1:]...)
		case "options":
			d.Options = append(d.Options, f[1:]...)
		}
	}
	return d, nil
}
