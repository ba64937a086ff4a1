// Package scheduler lets programs outside of this module be a scheduler with plugins of their own, which are written
// against k8s.io/kube-scheduler/framework:
//
//	func main() {
//		cmd := scheduler.NewCommand(scheduler.WithPlugin("Mine", newMine))
//		if err := cmd.Execute(); err != nil {
//			os.Exit(1)
//		}
//	}
//
// The command takes kube-scheduler's flags and configuration; a profile enables the plugin by its name.
// examples/scheduler-plugin is such a program.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	goruntime "runtime"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	leaderoptions "k8s.io/component-base/config/options"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/component"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

// schedulerOptions are kube-scheduler's flags.
type schedulerOptions struct {
	kubeconfig, master, file string
	qps                      float32
	burst                    int
	gates                    map[string]bool
	writeTo                  string
	profiling, contention    bool
	serving                  component.Serving
}

// PluginFactory makes a plugin from the arguments that its pluginConfig has, or nil. Arguments that are not
// of a kind of kubescheduler.config.k8s.io come as a *runtime.Unknown with JSON.
type PluginFactory = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error)

// Option changes what NewCommand returns.
type Option func(framework.Registry) error

// WithPlugin adds a plugin. Profiles have it if they enable it. The name must not be a default plugin's.
func WithPlugin(name string, factory PluginFactory) Option {
	return func(r framework.Registry) error {
		if _, ok := r[name]; ok {
			return fmt.Errorf("the scheduler plugin %q is registered twice", name)
		}
		r[name] = factory
		return nil
	}
}

// NewCommand returns the command of a scheduler that runs alone, with kube-scheduler's flags. Its context ends
// it; systemd hears when it is ready.
func NewCommand(options ...Option) *cobra.Command {
	o := schedulerOptions{serving: component.NewServing("kube-scheduler", 10259)}
	cfg := scheduler.DefaultConfig()
	registry := framework.Registry{}
	var invalid error
	var common *component.Common
	for _, option := range options {
		invalid = errors.Join(invalid, option(registry))
	}
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "The scheduler alone, with kube-scheduler's flags",
		Long: `Schedules the pods of the API server at --kubeconfig. Several can run side by side:
one of them leads (--leader-elect). Health, metrics and profiles are served over TLS at
--secure-port.`,
		Example: `  wherry scheduler --kubeconfig /etc/kubernetes/scheduler.conf`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if invalid != nil {
				return invalid
			}
			if err := common.Apply(cmd.Context()); err != nil {
				return err
			}
			if err := o.load(cmd.Context(), cmd.Flags(), &cfg); err != nil {
				return err
			}
			if o.writeTo != "" {
				return component.WriteConfig(o.writeTo, cfg.Effective())
			}
			cfg.Registry = registry
			return o.run(cmd.Context(), cfg)
		},
	}
	common = component.AddCommon(cmd, noEffect)
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&o.file, "config", "", "file with a KubeSchedulerConfiguration")
	f.StringVar(&o.writeTo, "write-config-to", "", "write the configuration, with all defaults, to this file, and exit")
	f.BoolVar(&o.profiling, "profiling", true, "serve /debug/pprof; without effect if there is --config")
	f.BoolVar(&o.contention, "contention-profiling", true, "record who waits for locks, if profiles are served; without effect if there is --config")
	f.Var(cliflag.NewMapStringBool(&o.gates), "feature-gates",
		"gates of features that are not final: GenericWorkload=true schedules pod groups, TopologyAwareWorkloadScheduling=true "+
			"those that want nodes of one domain; others have no effect")
	f.Float32Var(&o.qps, "kube-api-qps", -1, "most requests per second that the scheduler sends; negative for no limit")
	f.IntVar(&o.burst, "kube-api-burst", 100, "most requests that the scheduler sends at once, with --kube-api-qps")
	leaderoptions.BindLeaderElectionFlags(&cfg.LeaderElection, f)
	o.serving.AddFlags(f)
	return cmd
}

// noEffect are kube-scheduler's flags that have no effect here.
var noEffect = component.NoEffect{
	Ignored: map[string]string{
		"kube-api-content-type":                  "it is always protobuf",
		"unsupported-kube-api-over-localhost":    "the kubeconfig has the server's address",
		"pod-max-in-unschedulable-pods-duration": "pods are woken by events, and all of them after five minutes",
	},
}.With(component.Emulation)

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
	} else {
		cfg.NoProfiling, cfg.ContentionProfiling = !o.profiling, o.profiling && o.contention
	}
	for name, on := range o.gates {
		switch name = component.Gate(name); name {
		case gated.GenericWorkload:
			cfg.PodGroups = on
		case gated.TopologyAwareWorkloadScheduling:
			cfg.Topology = on
		case gated.DRAWorkloadResourceClaims: // what a group says of its claims goes
		default:
			klog.FromContext(ctx).Info("Feature gate has no effect", "flag", "--feature-gates", "gate", name)
		}
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
	limited := o.limited(restConfig)
	client, err := kubernetes.NewForConfig(limited)
	if err != nil {
		return err
	}
	// Plugins may have clients for kinds that have no protobuf.
	cfg.RESTConfig = rest.CopyConfig(limited)
	cfg.RESTConfig.ContentType = ""
	s, err := scheduler.New(ctx, client, cfg)
	if err != nil {
		return err
	}
	o.serving.Handle(report.SchedulingPath, s)
	o.serving.Handle("/configz", http.HandlerFunc(cfg.Configz))
	o.serving.NoProfiling = cfg.NoProfiling
	if cfg.ContentionProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	defer dumpOnSignal(ctx, s)()
	stopServing, err := o.serving.Start()
	if err != nil {
		return err
	}
	defer stopServing()
	return component.Run(ctx, restConfig, cfg.LeaderElection, s.Ready(), s.Run)
}

// dumpOnSignal logs the scheduler's state on SIGUSR2, until stop is called.
func dumpOnSignal(ctx context.Context, s *scheduler.Scheduler) (stop func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range asked {
			s.Dump(ctx)
		}
	}()
	return func() {
		signal.Stop(asked)
		close(asked)
		<-done
	}
}

func (o *schedulerOptions) limited(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst, c.ContentType = o.qps, o.burst, "application/vnd.kubernetes.protobuf"
	return c
}
