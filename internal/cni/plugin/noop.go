package plugin

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
)

// The plugin noop makes nothing: it passes on the result of the previous plugin, or an empty one.
// It stands in for a plugin where nothing has to be done, and makes chains testable.

func noopAdd(_ context.Context, args *skel.CmdArgs) error {
	c, err := readCommon(args.StdinData)
	if err != nil {
		return err
	}
	r, err := previous(&c.PluginConf)
	if err != nil {
		return err
	}
	if r == nil {
		r = &result.Result{CNIVersion: result.ImplementedSpecVersion}
	}
	return types.PrintResult(r, c.CNIVersion)
}

func noopDel(_ context.Context, args *skel.CmdArgs) error {
	_, err := readCommon(args.StdinData)
	return err
}

func noopCheck(ctx context.Context, args *skel.CmdArgs) error { return noopDel(ctx, args) }

func noopStatus(ctx context.Context, args *skel.CmdArgs) error { return noopDel(ctx, args) }
