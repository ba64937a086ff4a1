// Package plugin implements Wherry's CNI plugins as executables for other runtimes: bridge,
// host-local, loopback, noop and portmap. They accept upstream's configuration, speak every
// version of the protocol up to 1.1.0, and make links the way Wherry's own runtime does. A field
// that they do not know, or know but do not implement, is refused by name, never ignored.
//
// What they make is found again by the container's ID, not by records: names of links are derived
// from it, and elements in nftables carry it. So DEL works after a crash between any two steps,
// and GC works without a list of what exists.
//
// The package imports little, because every call starts a process.
package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	buildversion "wherry.dev/internal/version"
)

// verbs are a plugin's functions for the commands of the protocol.
type verbs struct {
	add, del, check, gc, status func(context.Context, *skel.CmdArgs) error
}

func plugins() map[string]verbs {
	return map[string]verbs{
		"bridge":     {bridgeAdd, bridgeDel, bridgeCheck, bridgeGC, bridgeStatus},
		"host-local": {hostLocalAdd, hostLocalDel, hostLocalCheck, hostLocalGC, hostLocalStatus},
		"loopback":   {loopbackAdd, loopbackDel, loopbackCheck, nothing, loopbackStatus},
		"noop":       {noopAdd, noopDel, noopCheck, nothing, noopStatus},
		"portmap":    {portmapAdd, portmapDel, portmapCheck, portmapGC, portmapStatus},
	}
}

// Names returns the names of all plugins, sorted.
func Names() []string {
	var names []string
	for name := range plugins() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Known reports whether there is a plugin of that name.
func Known(name string) bool {
	_, ok := plugins()[name]
	return ok
}

// Main runs the plugin of that name as a program and returns the exit status. Input and output
// are the environment, stdin and stdout (CNI spec 1.1, section 2).
func Main(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	v := plugins()[name]
	on := func(f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return f(ctx, args) }
	}
	funcs := skel.CNIFuncs{Add: on(v.add), Del: on(v.del), Check: on(v.check), GC: on(v.gc), Status: on(v.status)}
	about := fmt.Sprintf("CNI plugin %s of Wherry %s", name, buildversion.Version)
	if err := skel.PluginMainFuncsWithError(funcs, version.All, about); err != nil {
		if perr := err.Print(); perr != nil {
			fmt.Fprintln(os.Stderr, "write error to stdout:", perr)
		}
		return 1
	}
	return 0
}

// nothing is the GC of plugins that keep nothing.
func nothing(context.Context, *skel.CmdArgs) error { return nil }

// readConf decodes the configuration and refuses the fields that conf does not have.
func readConf(stdin []byte, conf any) error {
	if err := json.Unmarshal(stdin, conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "cannot read the network configuration: "+err.Error(), "")
	}
	return refuseUnknown(stdin, "", conf)
}

// previous returns the result of the previous plugin in the chain, or nil.
func previous(conf *types.PluginConf) (*result.Result, error) {
	if conf.RawPrevResult == nil {
		return nil, nil
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cannot read prevResult: "+err.Error(), "")
	}
	r, err := result.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "cannot read prevResult: "+err.Error(), "")
	}
	return r, nil
}

func invalid(format string, a ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, a...), "")
}

// unavailable returns the answer to STATUS if the plugin cannot serve ADD (CNI spec 1.1, code 50).
func unavailable(err error) error {
	return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
}
