package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"

	"wherry.dev/internal/component"
	"wherry.dev/internal/hollow"
	kubeletconfig "wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/safepath"
)

// hollowOptions are the flags of wherry hollow.
type hollowOptions struct {
	kubeconfig string
	qps        float32
	cfg        hollow.Config
}

func hollowCommand() *cobra.Command {
	o := hollowOptions{cfg: hollow.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "hollow",
		Short: "Thousands of nodes that exist only in memory, for any API server",
		Long: `Registers nodes whose pods run at once and end when they are asked to, and plays them until
it is stopped: leases, status, admission, and the life of each pod, by the kubelet's own code on
a runtime that is made up. Drain, rolling updates and failures of nodes then behave as on real
ones, at the size of large clusters. A node with ten pods takes less than 1 MiB.

Nodes have the label ` + hollow.LabelHollow + `=true. They stay when it ends, as those of killed kubelets do,
and the next start takes them and their pods over; with --cleanup they are deleted.

  node annotation ` + hollow.AnnotationFail + `=true     the node goes silent until it is removed: no lease,
                                           no status, nothing of its pods
  pod annotation ` + hollow.AnnotationExitAfter + `=90s   its containers end by themselves after that time,
  pod annotation ` + hollow.AnnotationExitCode + `=1      with this exit code (0 by default)

Nothing listens on the nodes' and the pods' addresses: logs, exec and probes of others fail.`,
		Example: `  wherry hollow --kubeconfig admin.conf --nodes 5000 --zones a,b,c
  kubectl annotate node hollow-7 ` + hollow.AnnotationFail + `=true      # it fails
  kubectl annotate node hollow-7 ` + hollow.AnnotationFail + `-          # and comes back
  # a second fleet of small nodes, for pods that tolerate its taint:
  wherry hollow --kubeconfig admin.conf --name-prefix small- --cpu 2 --memory 4Gi --nodes 50 \
    --node-cidr 10.193.0.0/16 --pod-cidr 10.64.0.0/10 --register-with-taints small=true:NoSchedule`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.cfg.Progress = cmd.ErrOrStderr()
			client, err := o.client()
			if err != nil {
				return err
			}
			f, err := hollow.New(o.cfg, client)
			if err != nil {
				return err
			}
			saveMemory()
			return component.Notify(cmd.Context(), f.Ready(), f.Run)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// saveMemory lets the garbage collector work more, unless $GOGC says how much: most of what this
// command has lives for long, and its size is what limits the number of nodes.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}

func (o *hollowOptions) addFlags(f *pflag.FlagSet) {
	c := &o.cfg
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv(clientcmd.RecommendedConfigPathEnvVar),
		"kubeconfig of the API server, as somebody who may write nodes, leases and pods (default $KUBECONFIG)")
	f.Float32Var(&o.qps, "qps", 0, "most requests per second of all nodes together; 0 for no limit")
	f.IntVar(&c.Nodes, "nodes", c.Nodes, "number of nodes")
	f.StringVar(&c.NamePrefix, "name-prefix", c.NamePrefix, "what the nodes' names begin with; a number follows")
	f.StringSliceVar(&c.Zones, "zones", c.Zones, "zones that the nodes are spread over")
	f.StringVar(&c.Region, "region", c.Region, "region of all zones")
	f.Var(&quantity{&c.CPU}, "cpu", "CPU of each node, for its pods")
	f.Var(&quantity{&c.Memory}, "memory", "memory of each node, for its pods")
	f.Var(&quantity{&c.EphemeralStorage}, "ephemeral-storage", "disk of each node, for its pods")
	f.IntVar(&c.Pods, "pods", c.Pods, "most pods on each node")
	f.Var(cliflag.NewMapStringString(&c.Labels), "node-labels", "more labels of each node: key=value, separated by commas")
	f.Var((*kubeletconfig.Taints)(&c.Taints), "register-with-taints",
		"taints to register each node with: key=value:effect, separated by commas")
	f.Var(&network{&c.NodeCIDR}, "node-cidr", "network of the nodes' addresses")
	f.Var(&network{&c.PodCIDR}, "pod-cidr", "network of the pods' addresses; each node gets a part of it")
	f.DurationVar(&c.PodStartDelay, "pod-start-delay", c.PodStartDelay, "how long a pod takes to start")
	f.DurationVar(&c.Heartbeat, "heartbeat", c.Heartbeat,
		"how often each node renews its lease, which lasts four times as long")
	f.DurationVar(&c.StatusEvery, "status-period", c.StatusEvery,
		"how often each node reports a status in which nothing has changed")
	f.IntVar(&c.Parallel, "parallel", c.Parallel, "how many nodes start, or are deleted, at the same time")
	f.BoolVar(&c.Events, "events", c.Events, "write events as kubelets do")
	f.BoolVar(&c.Cleanup, "cleanup", c.Cleanup, "delete the nodes at the end")
}

// client returns the one client of all nodes.
func (o *hollowOptions) client() (kubernetes.Interface, error) {
	if o.kubeconfig == "" {
		return nil, errors.New("--kubeconfig is required: it names the API server that the nodes register with")
	}
	if err := safepath.CheckFile(o.kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if o.qps < 0 {
		return nil, fmt.Errorf("--qps %g: give a number of requests per second, or 0 for no limit", o.qps)
	}
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c.QPS, c.ContentType, c.UserAgent = -1, "application/vnd.kubernetes.protobuf", "wherry-hollow"
	if o.qps > 0 {
		c.QPS, c.Burst = o.qps, max(int(o.qps), 1)
	}
	c.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(c)
}

// quantity is the value of a flag for an amount, as in pods.
type quantity struct{ *resource.Quantity }

// Set implements pflag.Value.
func (q quantity) Set(s string) (err error) {
	*q.Quantity, err = resource.ParseQuantity(s)
	return err
}

// Type implements pflag.Value.
func (quantity) Type() string { return "quantity" }

// network is the value of a flag for a network.
type network struct{ *netip.Prefix }

// Set implements pflag.Value.
func (n network) Set(s string) (err error) {
	*n.Prefix, err = netip.ParsePrefix(s)
	return err
}

// Type implements pflag.Value.
func (network) Type() string { return "network" }
