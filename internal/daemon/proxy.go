package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/config"
	"wherry.dev/internal/proxy"
	"wherry.dev/internal/proxy/policy"
)

// bridges is what the names of all instances' bridges begin with.
const bridges = "wh-"

// newProxy makes the service proxy. With --proxy=none there is none, and what an earlier one left in
// the kernel is removed.
func (d *Daemon) newProxy(_ context.Context, f informers.SharedInformerFactory) ([]service, error) {
	table := proxy.TableName(d.cfg.InstanceID())
	if d.cfg.Proxy == config.NoProxy {
		return nil, proxy.Remove(table)
	}
	p, err := proxy.New(proxy.Config{
		Node: d.cfg.NodeName, Table: table, Bridge: bridges + d.cfg.InstanceID(), OtherBridges: bridges, Pods: d.cfg.ClusterNetworks(),
		Reserved: d.ownPorts(),
	}, f)
	if err != nil {
		return nil, err
	}
	// Pods may need services from the start.
	return []service{{"proxy", p.Run, "the service proxy", p.Ready()}}, nil
}

// ownPorts are the TCP ports by which the node itself is reached: its own, and SSH.
func (d *Daemon) ownPorts() []uint16 {
	ports := []uint16{22}
	if d.cfg.Role.HasServer() {
		ports = append(ports, uint16(d.cfg.SecurePort))
		if d.several && len(d.cfg.EtcdServers) == 0 {
			ports = append(ports, uint16(d.cfg.PeerPort))
		}
	}
	if d.cfg.Role.HasNode() {
		ports = append(ports, uint16(d.cfg.KubeletPort))
	}
	return ports
}

// newPolicies makes what enforces network policies on our bridge. With --proxy=none somebody else does
// that, and what an earlier run left in the kernel is removed. Pods of a CNI network are left to it:
// they are not on the bridge.
func (d *Daemon) newPolicies(_ context.Context, f informers.SharedInformerFactory) ([]service, error) {
	table := policy.TableName(d.cfg.InstanceID())
	if d.cfg.Proxy == config.NoProxy {
		return nil, proxy.Remove(table)
	}
	e, err := policy.New(policy.Config{
		Node: d.cfg.NodeName, Table: table, Bridge: bridges + d.cfg.InstanceID(), ShowBridged: policy.ShowBridged,
	}, f)
	if err != nil {
		return nil, err
	}
	d.guard.enforcer.Store(e)
	// Pods must be isolated from the start.
	return []service{{"network policies", e.Run, "the network policies", e.Ready()}}, nil
}

// guard has network policies hold from a pod's first packet on. The runtime starts before the enforcer:
// as long as there is none, there are no pods of the API server's, either.
type guard struct {
	enforcer atomic.Pointer[policy.Enforcer]
}

// Admit implements cni.Guard.
func (g *guard) Admit(ctx context.Context, pod cni.Pod, addresses []netip.Addr) error {
	e := g.enforcer.Load()
	if e == nil {
		return nil
	}
	return e.Admit(ctx, pod.ID, policy.Identity{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}, addresses)
}

// Forget implements cni.Guard.
func (g *guard) Forget(id string) {
	if e := g.enforcer.Load(); e != nil {
		e.Forget(id)
	}
}

// removeTables removes what the service proxy and the network policies have in the kernel.
func removeTables(instance string) error {
	return errors.Join(proxy.Remove(proxy.TableName(instance)), proxy.Remove(policy.TableName(instance)))
}
