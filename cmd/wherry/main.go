// Wherry takes Kubernetes pods from `kubectl apply` to running containers and back,
// in one binary. See `wherry --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	_ "time/tzdata" // the time zones of cron jobs, on machines that have none

	"github.com/spf13/cobra"

	"wherry.dev/internal/cni/plugin"
	"wherry.dev/internal/component"
	"wherry.dev/internal/config"
	"wherry.dev/internal/daemon"
	"wherry.dev/internal/version"
	"wherry.dev/scheduler"
)

// The main thread stays the main goroutine's own. A goroutine that enters a pod's namespaces and
// ends there takes its thread with it; if that were the main thread, the whole process would appear
// to be in the pod's namespace for ever.
func init() { runtime.LockOSThread() }

func main() {
	if handled, code := dispatch(os.Args); handled {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := component.NativeHistograms()
	if err == nil {
		err = root().ExecuteContext(ctx)
	}
	var quiet exitError
	switch {
	case err == nil:
	case errors.As(err, &quiet):
		os.Exit(int(quiet))
	default:
		fmt.Fprintln(os.Stderr, "wherry: "+oneLine(err))
		os.Exit(1)
	}
}

// exitError ends the program with a status and no further message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// dispatch runs the programs that this binary also contains, chosen by the name it was called by or
// by its first argument.
func dispatch(args []string) (handled bool, code int) {
	name := filepath.Base(args[0])
	if name == "kubectl" {
		return true, kubectl(args)
	}
	if plugin.Known(name) {
		return true, plugin.Main(name)
	}
	if i := commandIndex(args, "kubectl"); i > 0 {
		return true, kubectl(append(args[i:i+1:i+1], append(args[1:i:i], args[i+1:]...)...))
	}
	return false, 0
}

// commandIndex returns the index of the command after leading flags, so that `wherry --data-dir D
// kubectl get pods` is kubectl's too.
func commandIndex(args []string, command string) int {
	for i := 1; i < len(args); i++ {
		switch a := args[i]; {
		case a == command:
			return i
		case a == "--data-dir" || a == "--run-dir":
			i++ // its value
		case !strings.HasPrefix(a, "--data-dir=") && !strings.HasPrefix(a, "--run-dir="):
			return 0
		}
	}
	return 0
}

// dirs are the flags with which every command finds its instance.
type dirs struct{ data, run string }

func (d *dirs) resolve() (data, run string, err error) {
	if data, run, err = config.Dirs(d.data, d.run); err == nil {
		run, err = daemon.RunDirOf(data, run)
	}
	return data, run, err
}

func root() *cobra.Command {
	var d dirs
	cmd := &cobra.Command{
		Use:   "wherry",
		Short: "Kubernetes pods from kubectl apply to running containers, in one binary",
		Long: `Wherry is a whole Kubernetes node in one binary: API server, scheduler,
controllers, kubelet, CRI runtime and network. ` + "`wherry up`" + ` starts one; each
component also runs alone and can be swapped with its upstream counterpart.`,
		Example: `  wherry up --detach                     # start a node, return when it is Ready
  wherry kubectl run hello --image=busybox -- sleep 1d
  wherry trace pod/hello                 # what its start took, step by step
  wherry explain pod/hello               # why it is not running, and what it waits for
  wherry down                            # stop the node and what runs on it`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Version,
	}
	cmd.PersistentFlags().StringVar(&d.data, "data-dir", "", "folder for everything durable (default "+config.DefaultDataDir+", or $"+config.EnvDataDir+")")
	cmd.PersistentFlags().StringVar(&d.run, "run-dir", "", "folder for run-time state (default "+config.DefaultRunDir+", or $"+config.EnvRunDir+")")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())
	})
	cmd.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "use", Title: "Work with it:"}, &cobra.Group{ID: "parts", Title: "Its components alone:"})
	for id, cmds := range map[string][]*cobra.Command{
		"node":  {upCommand(&d), joinCommand(&d), tokenCommand(&d), downCommand(&d)},
		"use":   {kubectlCommand(), hollowCommand(), imageCommand(&d), etcdCommand(&d), explainCommand(&d), traceCommand(&d)},
		"parts": {apiserverCommand(), scheduler.NewCommand(), controllerManagerCommand(), proxyCommand(), kubeletCommand(), criCommand(&d), cniCommand()},
	} {
		for _, c := range cmds {
			c.GroupID = id
			cmd.AddCommand(c)
		}
	}
	cmd.AddCommand(versionCommand())
	return cmd
}

// oneLine joins an error of several parts into one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
