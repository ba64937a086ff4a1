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

// ipamVerb is a command to an IPAM plugin: one in CNI_PATH, or our own within this process.
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

// isOwn reports whether the plugin found in CNI_PATH is this very executable: then it need not be
// started.
func isOwn(plugin, path string) bool {
	if plugin != hostLocal {
		return false
	}
	found, err := invoke.FindInPath(plugin, filepath.SplitList(path))
	if err != nil {
		return false // starting the plugin reports this again, and better
	}
	a, err := os.Stat(found)
	if err != nil {
		return false
	}
	b, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(a, b)
}
