package daemon

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/apiserver/auth/policy"
	"wherry.dev/internal/config"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/localvolume"
)

// volumesDir is where the volumes of claims are that get directories on the node's disk. It is not below the kubelet's
// root, all of which a node that is taken down may unmount and clear.
func volumesDir(dataDir string) string { return filepath.Join(dataDir, "volumes") }

// makeDisk makes where this node has volumes of the class local; nowhere without a node, or with --local-storage=none.
func (d *Daemon) makeDisk() (err error) {
	if d.cfg.LocalStorage == config.NoStorage || !d.cfg.Role.HasNode() {
		return nil
	}
	reserve := func(room disk.Room) uint64 { return leastFree(room) } // where pods begin to be evicted
	d.disk, err = localvolume.NewLocal(volumesDir(d.cfg.DataDir), reserve)
	return err
}

// newLocalVolumes makes what gives claims directories on the disks of nodes: its own, and those of others by their kubelets.
// The scheduler, which a server cannot do without, needs the same APIs.
func (d *Daemon) newLocalVolumes(_ context.Context, f informers.SharedInformerFactory) ([]service, error) {
	client, _, err := d.as("system:serviceaccount:kube-system:"+localvolume.Account, "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err != nil {
		return nil, err
	}
	_, kubelets, err := d.as(policy.DisksUser)
	if err != nil {
		return nil, err
	}
	http, err := rest.HTTPClientFor(kubelets)
	if err != nil {
		return nil, err
	}
	p, err := localvolume.New(localvolume.Config{
		Name: d.cfg.NodeName,
		Disk: func(node *v1.Node) localvolume.Disk {
			at := node.Annotations[cluster.AnnotationVolumes]
			switch {
			case node.Name == d.cfg.NodeName && d.disk != nil:
				return d.disk
			case node.Name == d.cfg.NodeName, at == cluster.NoVolumes, !filepath.IsAbs(at), filepath.Clean(at) != at:
				return nil
			}
			return localvolume.Remote{Node: node.Name, Folder: at, Client: http, Server: kubelets.Host}
		},
	}, client, f)
	if err != nil {
		return nil, err
	}
	return []service{{name: "local volumes", run: p.Run}}, nil
}
