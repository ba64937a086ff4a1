package daemon

import (
	"errors"
	"net/netip"

	"k8s.io/client-go/informers"

	"wherry.dev/internal/config"
	"wherry.dev/internal/proxy"
	"wherry.dev/internal/proxy/policy"
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

// newPolicies makes what enforces network policies on our bridge. With --proxy=none somebody else does
// that, and what an earlier run left in the kernel is removed. Pods of a CNI network are left to it:
// they are not on the bridge.
func (d *Daemon) newPolicies(f informers.SharedInformerFactory) (*policy.Enforcer, error) {
	table := policy.TableName(d.cfg.InstanceID())
	if d.cfg.Proxy == config.NoProxy {
		return nil, proxy.Remove(table)
	}
	return policy.New(policy.Config{
		Node: d.cfg.NodeName, Table: table, Bridge: bridges + d.cfg.InstanceID(), ShowBridged: policy.ShowBridged,
	}, f)
}

// removeTables removes what the service proxy and the network policies have in the kernel.
func removeTables(instance string) error {
	return errors.Join(proxy.Remove(proxy.TableName(instance)), proxy.Remove(policy.TableName(instance)))
}
