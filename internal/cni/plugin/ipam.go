package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	result "github.com/containernetworking/cni/pkg/types/100"
)

const hostLocal = "host-local"

// ipamVerb is a command to an IPAM plugin: to one in CNI_PATH, or to our own within
// this process.
type ipamVerb struct {
	exec func(ctx context.Context, plugin string, conf []byte, exec invoke.Exec) error
	own  func(context.Context, *skel.CmdArgs) error
}

var (
	ipamDel    = ipamVerb{invoke.DelegateDel, hostLocalDel}
	ipamCheck  = ipamVerb{invoke.DelegateCheck, hostLocalCheck}
	ipamGC     = ipamVerb{invoke.DelegateGC, hostLocalGC}
	ipamStatus = ipamVerb{invoke.DelegateStatus, hostLocalStatus}
)

func ipamCall(ctx context.Context, plugin string, args *skel.CmdArgs, v ipamVerb) error {
	if isOwn(plugin, args.Path) {
		return v.own(ctx, args)
	}
	if err := v.exec(ctx, plugin, args.StdinData, nil); err != nil {
		return fmt.Errorf("IPAM plugin %s: %w", plugin, err)
	}
	return nil
}

func ipamAdd(ctx context.Context, plugin string, args *skel.CmdArgs) (*result.Result, error) {
	if isOwn(plugin, args.Path) {
		return hostLocalLease(args)
	}
	r, err := invoke.DelegateAdd(ctx, plugin, args.StdinData, nil)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %s: %w", plugin, err)
	}
	return result.NewResultFromResult(r)
}

// isOwn tells whether the plugin that CNI_PATH leads to is this very executable:
// then it need not be started.
func isOwn(plugin, path string) bool {
	if plugin != hostLocal {
		return false
	}
	found, err := invoke.FindInPath(plugin, filepath.SplitList(path))
	if err != nil {
		return false // said again, better, where it is started
	}
	a, err := os.Stat(found)
	if err != nil {
		return false
	}
	b, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(a, b)
}
