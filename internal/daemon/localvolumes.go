package daemon

import (
	"context"
	"path/filepath"

	"k8s.io/client-go/informers"

	"wherry.dev/internal/config"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/localvolume"
)

// volumesDir is where the volumes of claims are that get directories on the node's disk. It is not below the kubelet's
// root, all of which a node that is taken down may unmount and clear.
func volumesDir(dataDir string) string { return filepath.Join(dataDir, "volumes") }

// newLocalVolumes makes what gives claims directories on the node's disk; nothing with --local-storage=none. The
// scheduler, which a node cannot do without, needs the same APIs. A node that has joined has none: whoever may make volumes
// could give those of other nodes to its pods.
func (d *Daemon) newLocalVolumes(_ context.Context, f informers.SharedInformerFactory) ([]service, error) {
	if d.cfg.LocalStorage == config.NoStorage || !d.cfg.Role.HasServer() {
		return nil, nil
	}
	client, _, err := d.as("system:serviceaccount:kube-system:"+localvolume.Account, "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err != nil {
		return nil, err
	}
	p, err := localvolume.New(localvolume.Config{
		Node: d.cfg.NodeName, Root: volumesDir(d.cfg.DataDir),
		Reserve: func(room disk.Room) uint64 { return leastFree(room) }, // where pods begin to be evicted
	}, client, f)
	if err != nil {
		return nil, err
	}
	return []service{{name: "local volumes", run: p.Run}}, nil
}
