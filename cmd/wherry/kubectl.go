package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"wherry.dev/internal/config"
)

// kubectlCommand is what `wherry --help` shows; dispatch has run kubectl itself
// before cobra would come here.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl",
		Short:              "kubectl, for this node",
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) { os.Exit(kubectl(os.Args[1:])) },
	}
}

// kubectl runs the kubectl in this binary. Without a kubeconfig of the user's it
// talks to the instance of --data-dir.
func kubectl(args []string) int {
	args, dataDir := takeDataDir(args)
	if os.Getenv("KUBECONFIG") == "" {
		data, _, err := config.Dirs(dataDir, "")
		if err != nil {
			fmt.Fprintln(os.Stderr, "wherry:", err)
			return 1
		}
		file := filepath.Join(data, "kubeconfig")
		if _, err := os.Stat(file); err == nil {
			if err := os.Setenv("KUBECONFIG", file); err != nil {
				fmt.Fprintln(os.Stderr, "wherry:", err)
				return 1
			}
		}
	}
	os.Args = args
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	cmd := kubectlcmd.NewDefaultKubectlCommandWithArgs(kubectlcmd.KubectlOptions{
		PluginHandler: kubectlcmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     args, ConfigFlags: flags, IOStreams: streams,
	})
	if err := cli.RunNoErrOutput(cmd); err != nil {
		cmdutil.CheckErr(err) // prints and exits
	}
	return 0
}

// takeDataDir removes --data-dir and --run-dir, which kubectl does not know, up to
// a "--" behind which everything belongs to someone else.
func takeDataDir(args []string) (rest []string, dataDir string) {
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		switch {
		case args[i] == "--":
			return append(rest, args[i:]...), dataDir
		case name != "--data-dir" && name != "--run-dir":
			rest = append(rest, args[i])
			continue
		case !hasValue && i+1 < len(args):
			i++
			value = args[i]
		}
		if name == "--data-dir" {
			dataDir = value
		}
	}
	return rest, dataDir
}
