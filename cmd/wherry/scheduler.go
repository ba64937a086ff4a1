package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	leaderoptions "k8s.io/component-base/config/options"
	"k8s.io/klog/v2"

	"wherry.dev/internal/safepath"
	"wherry.dev/internal/scheduler"
)

// schedulerOptions are kube-scheduler's flags.
type schedulerOptions struct {
	kubeconfig, master, file string
	qps                      float32
	burst                    int
	serving                  serving
}

func schedulerCommand() *cobra.Command {
	o := schedulerOptions{serving: newServing("kube-scheduler", 10259)}
	cfg := scheduler.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "The scheduler alone, with kube-scheduler's flags",
		Long: `Schedules the pods of the API server at --kubeconfig. Several can run side by side:
one of them leads (--leader-elect). Health, metrics and profiles are served over TLS at
--secure-port.`,
		Example: `  wherry scheduler --kubeconfig /etc/kubernetes/scheduler.conf`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.load(cmd.Context(), cmd.Flags(), &cfg); err != nil {
				return err
			}
			return o.run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&o.file, "config", "", "file with a KubeSchedulerConfiguration")
	f.Float32Var(&o.qps, "kube-api-qps", -1, "most requests per second that the scheduler sends; negative for no limit")
	f.IntVar(&o.burst, "kube-api-burst", 100, "most requests that the scheduler sends at once, with --kube-api-qps")
	leaderoptions.BindLeaderElectionFlags(&cfg.LeaderElection, f)
	o.serving.addFlags(f)
	return cmd
}

// load reads the configuration file; flags that were given take precedence.
func (o *schedulerOptions) load(ctx context.Context, flags *pflag.FlagSet, cfg *scheduler.Config) error {
	if o.file != "" {
		fromFile, warnings, err := scheduler.LoadConfig(o.file)
		if err != nil {
			return err
		}
		for _, w := range warnings {
			klog.FromContext(ctx).Info("Warning: " + w)
		}
		given := pflag.NewFlagSet("", pflag.ContinueOnError)
		leaderoptions.BindLeaderElectionFlags(&fromFile.LeaderElection, given)
		given.VisitAll(func(f *pflag.Flag) {
			if from := flags.Lookup(f.Name); from.Changed {
				err = errors.Join(err, f.Value.Set(from.Value.String()))
			}
		})
		if err != nil {
			return err
		}
		*cfg = fromFile
	}
	if o.kubeconfig == "" {
		o.kubeconfig = cfg.Kubeconfig
	}
	if o.kubeconfig == "" && o.master == "" {
		return errors.New("--kubeconfig is required: it names the API server to schedule for")
	}
	return nil
}

func (o *schedulerOptions) run(ctx context.Context, cfg scheduler.Config) error {
	err := safepath.CheckFile(o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	restConfig, err := clientcmd.BuildConfigFromFlags(o.master, o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(o.limited(restConfig))
	if err != nil {
		return err
	}
	s, err := scheduler.New(ctx, client, cfg)
	if err != nil {
		return err
	}
	stopServing, err := o.serving.start()
	if err != nil {
		return err
	}
	defer stopServing()
	if !cfg.LeaderElection.LeaderElect {
		return notify(ctx, s.Ready(), s.Run)
	}
	// one that waits for the lease is ready too
	ready := make(chan struct{})
	close(ready)
	return notify(ctx, ready, func(ctx context.Context) error {
		return lead(ctx, rest.CopyConfig(restConfig), cfg.LeaderElection, s.Run)
	})
}

func (o *schedulerOptions) limited(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst, c.ContentType = o.qps, o.burst, "application/vnd.kubernetes.protobuf"
	return c
}
