package manager

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/controller/attachdetach"
	"wherry.dev/internal/controller/certificates"
	"wherry.dev/internal/controller/horizontalpodautoscaler"
	"wherry.dev/internal/controller/nodeipam"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
)

// autoscaler is what the names of the autoscalers' flags begin with.
const autoscaler = "horizontal-pod-autoscaler-"

// Options are settings of single controllers.
type Options struct {
	// Controllers are those that run: names, -NAME for one to leave out, * for all others.
	Controllers     []string
	Autoscaler      horizontalpodautoscaler.Options
	Nodes           nodelifecycle.Options
	TerminatedPods  int           // how many finished pods are kept; all if it is not positive
	SigningDuration time.Duration // the longest time that certificates are valid
	Volumes         attachdetach.Options
	Ranges          NodeRanges
	// CloudProvider is cluster.CloudExternal if a cloud balances services, "" if nodes do.
	CloudProvider string
}

// NodeRanges say from where nodes get the addresses of their pods. The networks are one, or one of each IP family,
// separated by a comma.
type NodeRanges struct {
	// Allocate: nodes get ranges at all.
	Allocate bool
	// Cluster are the networks of pods, Services those of services, from which nothing is given.
	Cluster, Services string
	// Bits, for a cluster with one network, Bits4 and Bits6 are the sizes of nodes' ranges, as lengths of prefixes;
	// 0 means the default.
	Bits, Bits4, Bits6 int
}

// options returns them as the controller wants them.
func (r *NodeRanges) options() (o nodeipam.Options, err error) {
	if !r.Allocate {
		return o, nil
	}
	if r.Cluster == "" {
		return o, errors.New("--allocate-node-cidrs needs --cluster-cidr, the cluster's network of pods")
	}
	if o.Networks, err = cluster.ParseNetworks("--cluster-cidr", r.Cluster); err != nil {
		return o, err
	}
	if o.Reserved, err = cluster.ParseNetworks("--service-cluster-ip-range", r.Services); err != nil {
		return o, err
	}
	if len(o.Networks) > 1 && r.Bits != 0 {
		return o, errors.New("--node-cidr-mask-size is for one network of pods; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
	}
	o.Bits4, o.Bits6 = cmp.Or(r.Bits4, r.Bits, nodeipam.Bits4), cmp.Or(r.Bits6, r.Bits, nodeipam.Bits6)
	return o, o.Validate()
}

// DefaultOptions returns upstream's defaults.
func DefaultOptions() Options {
	return Options{[]string{"*"}, horizontalpodautoscaler.Defaults, nodelifecycle.Defaults, podgc.TerminatedThreshold, certificates.MostTime, attachdetach.Options{}, NodeRanges{}, ""}
}

func (c *Config) options() Options {
	if c.Options == nil {
		return DefaultOptions()
	}
	return *c.Options
}

// AddFlags adds kube-controller-manager's flags for them.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.Controllers, "controllers", o.Controllers, "controllers to run: names, -NAME to leave one out, * for all others. All controllers: "+strings.Join(Names(), ", "))
	hpa := &o.Autoscaler
	f.DurationVar(&hpa.Period, autoscaler+"sync-period", hpa.Period, "how often autoscalers look at their metrics")
	f.DurationVar(&hpa.Window, autoscaler+"downscale-stabilization", hpa.Window, "how long an autoscaler looks back, and does not go below any size that it recommended")
	f.Float64Var(&hpa.Tolerance, autoscaler+"tolerance", hpa.Tolerance, "by how much, as a share, a metric may miss its target before the size changes")
	f.DurationVar(&hpa.CPUInitial, autoscaler+"cpu-initialization-period", hpa.CPUInitial, "how long after a pod's start its CPU usage may not count")
	f.DurationVar(&hpa.ReadinessDelay, autoscaler+"initial-readiness-delay", hpa.ReadinessDelay, "how long after a pod's start it counts as not yet ready if its readiness changes")
	f.DurationVar(&o.Nodes.GracePeriod, "node-monitor-grace-period", o.Nodes.GracePeriod, "how long a node may be silent before it is marked as unreachable")
	f.DurationVar(&o.Nodes.StartupGrace, "node-startup-grace-period", o.Nodes.StartupGrace, "the same, for a node that has never reported its status")
	f.Float64Var(&o.Nodes.EvictionRate, "node-eviction-rate", o.Nodes.EvictionRate, "of how many nodes of a zone that are not ready the pods are evicted in a second")
	f.Float64Var(&o.Nodes.SecondaryEvictionRate, "secondary-node-eviction-rate", o.Nodes.SecondaryEvictionRate, "the same, in a large zone of which many nodes are not ready")
	f.Float64Var(&o.Nodes.UnhealthyZone, "unhealthy-zone-threshold", o.Nodes.UnhealthyZone, "which part of a zone's nodes, and at least three, that are not ready make it unhealthy")
	f.IntVar(&o.Nodes.LargeZone, "large-cluster-size-threshold", o.Nodes.LargeZone, "zones with more nodes than this are large; in a smaller one that is unhealthy nothing is evicted")
	f.IntVar(&o.TerminatedPods, "terminated-pod-gc-threshold", o.TerminatedPods, "how many finished pods are kept before the oldest are deleted; 0 or less keeps all")
	f.BoolVar(&o.Volumes.NoForceDetach, "disable-force-detach-on-timeout", o.Volumes.NoForceDetach, "keep volumes attached to a node that is not ready and said that it uses them, until it is ready again or has the taint node.kubernetes.io/out-of-service")
	f.BoolVar(&o.Ranges.Allocate, "allocate-node-cidrs", o.Ranges.Allocate, "give each node a range of addresses for its pods, from --cluster-cidr")
	f.StringVar(&o.Ranges.Cluster, "cluster-cidr", o.Ranges.Cluster, "the cluster's network of pods, or two of different IP families separated by a comma")
	f.StringVar(&o.Ranges.Services, "service-cluster-ip-range", o.Ranges.Services, "networks of services, from which no node gets a range")
	f.IntVar(&o.Ranges.Bits, "node-cidr-mask-size", o.Ranges.Bits, "size of nodes' ranges, as the length of a prefix (default 24 for IPv4, 64 for IPv6)")
	f.IntVar(&o.Ranges.Bits4, "node-cidr-mask-size-ipv4", o.Ranges.Bits4, "the same, for IPv4")
	f.IntVar(&o.Ranges.Bits6, "node-cidr-mask-size-ipv6", o.Ranges.Bits6, "the same, for IPv6")
	f.StringVar(&o.CloudProvider, "cloud-provider", o.CloudProvider, "external, if a cloud balances services of type LoadBalancer; otherwise nodes do")
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
	if _, err := Parse(o.Controllers); err != nil {
		errs = append(errs, err)
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
	for flag, rate := range map[string]float64{"node-eviction-rate": o.Nodes.EvictionRate, "secondary-node-eviction-rate": o.Nodes.SecondaryEvictionRate} {
		if !(rate >= 0) { // NaN is none
			errs = append(errs, fmt.Errorf("--%s must not be negative: %v", flag, rate))
		}
	}
	if t := o.Nodes.UnhealthyZone; !(t >= 0 && t <= 1) {
		errs = append(errs, fmt.Errorf("--unhealthy-zone-threshold must be between 0 and 1, not %v", t))
	}
	positive("cluster-signing-duration", o.SigningDuration)
	if o.CloudProvider != "" && o.CloudProvider != cluster.CloudExternal {
		errs = append(errs, fmt.Errorf("--cloud-provider %q must be %s, or left out", o.CloudProvider, cluster.CloudExternal))
	}
	if _, err := o.Ranges.options(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
