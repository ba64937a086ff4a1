package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"

	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/netns"
)

const lo = "lo" // whatever CNI_IFNAME says, this plugin has only this one

// common has the fields that libcni and the CNI spec define for every plugin.
type common struct {
	types.PluginConf
	Args          map[string]any `json:"args"`
	RuntimeConfig map[string]any `json:"runtimeConfig"`
}

// readCommon reads the configuration of a plugin without fields of its own.
func readCommon(stdin []byte) (*common, error) {
	c := &common{}
	if err := readConf(stdin, c); err != nil {
		return nil, err
	}
	if c.IPAM.Type != "" {
		return nil, types.NewError(types.ErrUnsupportedField, "unsupported field ipam.type: "+c.IPAM.Type, "")
	}
	if !c.DNS.IsEmpty() {
		return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unsupported field dns: %v", c.DNS), "")
	}
	for key, value := range c.RuntimeConfig {
		return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unsupported field runtimeConfig.%s: %v", key, value), "")
	}
	return c, nil
}

func loopbackAdd(_ context.Context, args *skel.CmdArgs) error {
	c, err := readCommon(args.StdinData)
	if err != nil {
		return err
	}
	r, err := previous(&c.PluginConf)
	if err != nil {
		return err
	}
	addrs, err := loopbackUp(args.Netns)
	if err != nil {
		return err
	}
	if r == nil {
		r = &result.Result{
			CNIVersion: result.ImplementedSpecVersion,
			Interfaces: []*result.Interface{{Name: lo, Mac: "00:00:00:00:00:00", Sandbox: args.Netns}},
		}
		for _, a := range addrs {
			r.IPs = append(r.IPs, &result.IPConfig{Interface: new(0), Address: *a})
		}
	}
	return types.PrintResult(r, c.CNIVersion)
}

// loopbackUp brings lo up and returns its addresses.
func loopbackUp(ns string) (addrs []*net.IPNet, err error) {
	err = netns.Do(func() error {
		c, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.Do(rtnl.Up(1)); err != nil {
			return fmt.Errorf("bring up %s: %w", lo, err)
		}
		link, err := net.InterfaceByName(lo)
		if err != nil {
			return err
		}
		all, err := link.Addrs()
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok {
				if !n.IP.IsLoopback() {
					return fmt.Errorf("%s has the address %s, which is not a loopback address", lo, n.IP)
				}
				addrs = append(addrs, n)
			}
		}
		return err
	}, ns)
	return addrs, err
}

func loopbackDel(_ context.Context, args *skel.CmdArgs) error {
	if _, err := readCommon(args.StdinData); err != nil {
		return err
	}
	if args.Netns == "" {
		return nil
	}
	err := netns.Do(func() error {
		c, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return c.Do(rtnl.Down(1))
	}, args.Netns)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func loopbackCheck(_ context.Context, args *skel.CmdArgs) error {
	if _, err := readCommon(args.StdinData); err != nil {
		return err
	}
	return netns.Do(func() error { return rtnl.HasAddrs(lo, nil) }, args.Netns)
}

func loopbackStatus(_ context.Context, args *skel.CmdArgs) error {
	_, err := readCommon(args.StdinData)
	return err
}
