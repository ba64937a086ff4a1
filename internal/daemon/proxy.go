package daemon

import (
	"net/netip"

	"k8s.io/client-go/informers"

	"wherry.dev/internal/config"
	"wherry.dev/internal/proxy"
)

// bridges is what the names of all instances' bridges begin with.
const bridges = "wh-"

// newProxy makes the service proxy. With --proxy=none there is none, and what an earlier one left in
// the kernel is removed.
func (d *Daemon) newProxy(f informers.SharedInformerFactory) (*proxy.Proxy, error) {
	table := proxy.TableName(d.cfg.InstanceID())
	if d.cfg.Proxy == config.NoProxy {
		return nil, proxy.Remove(table)
	}
	first, second, err := config.PodNetworks(d.cfg.PodCIDR)
	if err != nil {
		return nil, err
	}
	pods := []netip.Prefix{first.Masked()}
	if second.IsValid() {
		pods = append(pods, second.Masked())
	}
	return proxy.New(proxy.Config{
		Node: d.cfg.NodeName, Table: table, Bridge: bridges + d.cfg.InstanceID(), OtherBridges: bridges, Pods: pods,
	}, f)
}
