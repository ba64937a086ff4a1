package manager

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"wherry.dev/internal/controller/attachdetach"
	"wherry.dev/internal/controller/certificates"
	"wherry.dev/internal/controller/horizontalpodautoscaler"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
)

// autoscaler is what the names of the autoscalers' flags begin with.
const autoscaler = "horizontal-pod-autoscaler-"

// Options are settings of single controllers.
type Options struct {
	Autoscaler      horizontalpodautoscaler.Options
	Nodes           nodelifecycle.Options
	TerminatedPods  int           // how many finished pods are kept; all if it is not positive
	SigningDuration time.Duration // the longest time that certificates are valid
	Volumes         attachdetach.Options
}

// DefaultOptions returns upstream's defaults.
func DefaultOptions() Options {
	return Options{horizontalpodautoscaler.Defaults, nodelifecycle.Defaults, podgc.TerminatedThreshold, certificates.MostTime, attachdetach.Options{}}
}

func (c *Config) options() Options {
	if c.Options == nil {
		return DefaultOptions()
	}
	return *c.Options
}

// AddFlags adds kube-controller-manager's flags for them.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	hpa := &o.Autoscaler
	f.DurationVar(&hpa.Period, autoscaler+"sync-period", hpa.Period, "how often autoscalers look at their metrics")
	f.DurationVar(&hpa.Window, autoscaler+"downscale-stabilization", hpa.Window, "how long an autoscaler looks back, and does not go below any size that it recommended")
	f.Float64Var(&hpa.Tolerance, autoscaler+"tolerance", hpa.Tolerance, "by how much, as a share, a metric may miss its target before the size changes")
	f.DurationVar(&hpa.CPUInitial, autoscaler+"cpu-initialization-period", hpa.CPUInitial, "how long after a pod's start its CPU usage may not count")
	f.DurationVar(&hpa.ReadinessDelay, autoscaler+"initial-readiness-delay", hpa.ReadinessDelay, "how long after a pod's start it counts as not yet ready if its readiness changes")
	f.DurationVar(&o.Nodes.GracePeriod, "node-monitor-grace-period", o.Nodes.GracePeriod, "how long a node may be silent before it is marked as unreachable")
	f.DurationVar(&o.Nodes.StartupGrace, "node-startup-grace-period", o.Nodes.StartupGrace, "the same, for a node that has never reported its status")
	f.IntVar(&o.TerminatedPods, "terminated-pod-gc-threshold", o.TerminatedPods, "how many finished pods are kept before the oldest are deleted; 0 or less keeps all")
	f.BoolVar(&o.Volumes.NoForceDetach, "disable-force-detach-on-timeout", o.Volumes.NoForceDetach, "keep volumes attached to a node that is not ready and said that it uses them, until it is ready again or has the taint node.kubernetes.io/out-of-service")
	f.DurationVar(&o.SigningDuration, "cluster-signing-duration", o.SigningDuration, "how long certificates are valid, unless a shorter time is requested")
}

// Validate returns all that is wrong, by flag.
func (o *Options) Validate() error {
	var errs []error
	positive := func(flag string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be greater than 0, not %s", flag, d))
		}
	}
	notNegative := func(flag string, d time.Duration) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("--%s must not be negative: %s", flag, d))
		}
	}
	positive(autoscaler+"sync-period", o.Autoscaler.Period)
	notNegative(autoscaler+"downscale-stabilization", o.Autoscaler.Window)
	notNegative(autoscaler+"cpu-initialization-period", o.Autoscaler.CPUInitial)
	notNegative(autoscaler+"initial-readiness-delay", o.Autoscaler.ReadinessDelay)
	if !(o.Autoscaler.Tolerance >= 0) { // NaN is none
		errs = append(errs, fmt.Errorf("--%stolerance must not be negative: %v", autoscaler, o.Autoscaler.Tolerance))
	}
	positive("node-monitor-grace-period", o.Nodes.GracePeriod)
	notNegative("node-startup-grace-period", o.Nodes.StartupGrace)
	positive("cluster-signing-duration", o.SigningDuration)
	return errors.Join(errs...)
}
