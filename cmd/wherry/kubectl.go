package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"wherry.dev/internal/config"
	"wherry.dev/internal/daemon"
)

// kubectlCommand is what `wherry --help` shows; dispatch runs kubectl itself before cobra gets
// here.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl",
		Short: "kubectl, for this node",
		Long: `kubectl. If you have no kubeconfig ($KUBECONFIG, ~/.kube/config), or when --data-dir or
$` + config.EnvDataDir + ` names an instance, it reads that instance's.`,
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) { os.Exit(kubectl(os.Args[1:])) },
	}
}

// kubectl runs the kubectl in this binary.
func kubectl(args []string) int {
	args, dataDir := takeDataDir(args)
	if err := lendKubeconfig(args, dataDir); err != nil {
		fmt.Fprintln(os.Stderr, "wherry:", err)
		return 1
	}
	os.Args = args
	o := kubectlOptions(args)
	o.PluginHandler = kubectlcmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes)
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommandWithArgs(o)); err != nil {
		cmdutil.CheckErr(err) // prints and exits
	}
	return 0
}

func kubectlOptions(args []string) kubectlcmd.KubectlOptions {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	return kubectlcmd.KubectlOptions{Arguments: args, ConfigFlags: flags, IOStreams: streams}
}

// lendKubeconfig lets kubectl read an instance's kubeconfig if the user has none: the one that
// --data-dir or its variable names, or else the default instance's, after ~/.kube/config. It is the
// instance's own file, and others depend on it, so kubectl is never pointed at it for writing.
func lendKubeconfig(args []string, dataDir string) error {
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" || writesKubeconfig(args) {
		return nil
	}
	named := dataDir != "" || os.Getenv(config.EnvDataDir) != ""
	if !named && exists(clientcmd.RecommendedHomeFile) {
		return nil
	}
	data, _, err := config.Dirs(dataDir, "")
	if err != nil {
		return err
	}
	file := filepath.Join(data, "kubeconfig")
	if !exists(file) {
		if daemon.HasJoined(data) && !namesServer(args) {
			return fmt.Errorf("the node of %s has joined somebody else's server: use kubectl there, or give its kubeconfig with --kubeconfig", data)
		}
		return nil
	}
	return os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file)
}

// namesServer reports whether arguments say where the API server is.
func namesServer(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(a, "=")
		return name == "--kubeconfig" || name == "--server" || name == "-s"
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readers are the commands of `kubectl config` that change nothing.
var readers = []string{"view", "current-context", "get-clusters", "get-contexts", "get-users"}

// writesKubeconfig asks kubectl's own commands which of them the arguments select.
func writesKubeconfig(args []string) bool {
	if !slices.Contains(args, "config") {
		return false
	}
	found, _, err := kubectlcmd.NewKubectlCommand(kubectlOptions(args)).Find(args[1:])
	if err != nil || !found.HasParent() {
		return false
	}
	return found.Parent().Name() == "config" && !slices.Contains(readers, found.Name())
}

// takeDataDir removes --data-dir and --run-dir, which kubectl does not know, up to a "--", after
// which everything belongs to another program.
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
