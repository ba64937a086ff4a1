package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/cni/mesh"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/clusterinfo"
)

// nodesGroup is the group of all nodes.
const nodesGroup = "system:nodes"

func nodeUser(node string) string { return "system:node:" + node }

// as returns a client that acts as the user, with the rights that RBAC gives it and no more. In a process without an API
// server everything acts as the node.
func (d *Daemon) as(user string, groups ...string) (clientset.Interface, *rest.Config, error) {
	if d.api != nil {
		return as(d.api, user, groups...)
	}
	return clientOf(nodeUser(d.cfg.NodeName), d.joined.client())
}

func as(api *apiserver.Server, user string, groups ...string) (clientset.Interface, *rest.Config, error) {
	return clientOf(user, api.ClientConfig(user, groups...))
}

func clientOf(user string, cfg *rest.Config) (clientset.Interface, *rest.Config, error) {
	cfg.WarningHandler = rest.NoWarnings{} // what is deprecated is ours to know
	client, err := clientset.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("client for %s: %w", user, err)
	}
	return client, cfg, nil
}

// clusterInfo returns what nodes that join are told.
func (d *Daemon) clusterInfo(ca []byte) (clusterinfo.Config, error) {
	facts := cluster.Facts{PodNetworks: d.cfg.ClusterNetworks(), Domain: d.cfg.ClusterDomain, Mode: d.cfg.NetworkMode, VNI: vni(ca)}
	facts.Mask4, facts.Mask6, facts.Cloud = d.cfg.NodeMask4, d.cfg.NodeMask6, d.cfg.CloudProvider
	var err error
	if facts.ServiceNetworks, err = cluster.ParseNetworks("--service-cidr", d.cfg.ServiceCIDR); err != nil {
		return clusterinfo.Config{}, err
	}
	// From the configuration: servers may come before this one's own DNS server is there.
	if facts.DNS, err = d.clusterDNS(); err != nil {
		return clusterinfo.Config{}, err
	}
	return clusterinfo.Config{Server: "https://" + hostPort(d.cfg.NodeIPs()[0].String(), d.cfg.SecurePort), CA: ca, Facts: &facts}, nil
}

// vni returns the number of a cluster's VXLAN, which follows from its authority: two clusters on one link do not mix.
func vni(ca []byte) uint32 {
	sum := sha256.Sum256(ca)
	return max(binary.BigEndian.Uint32(sum[:4])>>8, 1)
}

// loadKey loads this node's key for WireGuard, if its cluster has that. Its public part is an annotation of the Node.
func (d *Daemon) loadKey() (err error) {
	if d.cfg.NetworkMode == cluster.ModeWireGuard && d.cfg.Role.HasNode() {
		d.key, err = mesh.LoadKey(filepath.Join(d.cfg.DataDir, "wireguard.key"))
	}
	return err
}

// checkMode refuses a network that this machine cannot have.
func checkMode(cfg *config.Config) error {
	if cfg.NetworkMode == cluster.ModeWireGuard && cfg.Role.HasNode() {
		return mesh.CheckWireGuard()
	}
	return nil
}

// newMesh makes the ways to the pods of other nodes.
func (d *Daemon) newMesh(_ context.Context, f informers.SharedInformerFactory) ([]service, error) {
	if d.cfg.NetworkMode == cluster.ModeNone || d.cfg.RuntimeEndpoint != "" && d.cfg.Role.HasServer() {
		return nil, mesh.Remove(d.cfg.InstanceID(), d.cfg.ClusterNetworks())
	}
	id, err := d.vni()
	if err != nil {
		return nil, err
	}
	m, err := mesh.New(mesh.Config{
		Node: d.cfg.NodeName, Instance: d.cfg.InstanceID(), Mode: d.cfg.NetworkMode, VNI: id, Key: d.key, Cluster: d.cfg.ClusterNetworks(),
	}, f)
	if err != nil {
		return nil, err
	}
	return []service{{name: "ways to other nodes", run: m.Run}}, nil
}

func (d *Daemon) vni() (uint32, error) {
	if d.api == nil {
		return d.joined.vni, nil
	}
	ca, err := d.api.CA().Cert()
	return vni(ca), err
}
