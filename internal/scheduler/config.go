package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"
	componentconfigv1 "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/scheduler/extender"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
)

// Config is KubeSchedulerConfiguration as this scheduler uses it.
type Config struct {
	Profiles       []ProfileConfig
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	// Parallelism is how many goroutines look at nodes at once.
	Parallelism int
	// PercentageOfNodesToScore ends the search for nodes that fit when so many per cent of all nodes are
	// found. 0 means fewer, the more nodes there are.
	PercentageOfNodesToScore int32
	// MemoNodes is from how many nodes on what plugins said about a node is remembered for pods of one shape.
	MemoNodes int
	plugins.Gates
	// Extenders are asked after the plugins, in this order.
	Extenders []fwk.Extender
	// Registry has plugins beside the default ones.
	Registry framework.Registry
	// Only for a scheduler that runs as a process of its own:
	Kubeconfig     string
	LeaderElection componentconfig.LeaderElectionConfiguration
	// NoProfiling switches the profiles off that it serves, and ContentionProfiling has it record who waits for locks.
	NoProfiling, ContentionProfiling bool
	// RESTConfig is how plugins reach the API server; nil if they run in its process.
	RESTConfig *restclient.Config
	// Serves reports whether the API server has a resource; nil has it asked once the scheduler runs.
	Serves func(schema.GroupVersionResource) bool
	// Informers are those that it shares with others of its process, who start them once it is made; nil if it
	// has its own.
	Informers informers.SharedInformerFactory

	file *configv1.KubeSchedulerConfiguration // nil without one
}

// ProfileConfig configures the profile of one schedulerName.
type ProfileConfig struct {
	SchedulerName            string
	PercentageOfNodesToScore *int32
	Plugins                  *configv1.Plugins         // what it changes about the default plugins; may be nil
	Args                     map[string]runtime.Object // of plugins, by name
}

// DefaultConfig returns one profile, default-scheduler, with the default plugins.
func DefaultConfig() Config {
	return Config{
		Profiles:    []ProfileConfig{{SchedulerName: v1.DefaultSchedulerName}},
		Parallelism: framework.DefaultParallelism,
		MemoNodes:   framework.MemoNodes,
		LeaderElection: componentconfig.LeaderElectionConfiguration{
			LeaderElect:       true,
			LeaseDuration:     metav1.Duration{Duration: 15 * time.Second},
			RenewDeadline:     metav1.Duration{Duration: 10 * time.Second},
			RetryPeriod:       metav1.Duration{Duration: 2 * time.Second},
			ResourceLock:      resourcelock.LeasesResourceLock,
			ResourceName:      "kube-scheduler",
			ResourceNamespace: metav1.NamespaceSystem,
		},
	}
}

// LoadConfig reads a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1). It returns
// warnings for fields that are accepted but have no effect here.
func LoadConfig(path string) (Config, []string, error) {
	data, err := safepath.ReadFile(path, safepath.ConfigSize)
	if err != nil {
		return Config{}, nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	in, err := decode(data)
	if err != nil {
		return Config{}, nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	c, warnings, err := convert(in)
	if err != nil {
		return c, nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	for i, field := range warnings {
		warnings[i] = fmt.Sprintf("scheduler configuration %s: %s has no effect", path, field)
	}
	return c, warnings, nil
}

func decode(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	obj, gvk, err := decoder.Decode(data, nil, nil)
	if err != nil {
		if runtime.IsNotRegisteredError(err) {
			return nil, fmt.Errorf("want a KubeSchedulerConfiguration of %s: %w", configv1.SchemeGroupVersion, err)
		}
		return nil, err
	}
	in, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %s of %s, want a KubeSchedulerConfiguration of %s", gvk.Kind, gvk.GroupVersion(), configv1.SchemeGroupVersion)
	}
	return in, in.DecodeNestedObjects(decoder)
}

func convert(in *configv1.KubeSchedulerConfiguration) (Config, []string, error) {
	var warnings []string
	warn := func(set bool, field string) {
		if set {
			warnings = append(warnings, field)
		}
	}
	warn(in.DelayCacheUntilActive, "delayCacheUntilActive")
	c := DefaultConfig()
	c.file = in
	c.NoProfiling = !ptr.Deref(in.EnableProfiling, true)
	c.ContentionProfiling = !c.NoProfiling && ptr.Deref(in.EnableContentionProfiling, false)
	c.Kubeconfig = in.ClientConnection.Kubeconfig
	leaderElection(&c.LeaderElection, &in.LeaderElection)
	var errs []error
	invalid := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("%s: Invalid value: %v: %s", field, value, why))
	}
	binder := false
	for i := range in.Extenders {
		e, err := extender.New(in.Extenders[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("extenders[%d].%w", i, err))
		}
		c.Extenders = append(c.Extenders, e)
		if binds := in.Extenders[i].BindVerb != ""; binds && binder {
			invalid(fmt.Sprintf("extenders[%d].bindVerb", i), in.Extenders[i].BindVerb, "only one extender can implement bind")
		} else {
			binder = binder || binds
		}
	}
	if s := in.PodInitialBackoffSeconds; s != nil {
		c.InitialBackoff = time.Duration(*s) * time.Second
		if *s <= 0 {
			invalid("podInitialBackoffSeconds", *s, "must be greater than 0")
		}
	}
	if s := in.PodMaxBackoffSeconds; s != nil {
		c.MaxBackoff = time.Duration(*s) * time.Second
		if c.MaxBackoff < c.InitialBackoff {
			invalid("podMaxBackoffSeconds", *s, "must be greater than or equal to podInitialBackoffSeconds")
		}
	}
	if n := in.Parallelism; n != nil {
		c.Parallelism = int(*n)
		if *n <= 0 {
			invalid("parallelism", *n, "should be an integer value greater than zero")
		}
	}
	percentage := func(field string, n *int32) int32 {
		if n != nil && (*n < 0 || *n > 100) {
			invalid(field, *n, "not in valid range [0-100]")
		}
		return ptr.Deref(n, 0)
	}
	c.PercentageOfNodesToScore = percentage("percentageOfNodesToScore", in.PercentageOfNodesToScore)
	if len(in.Profiles) > 0 {
		c.Profiles = nil
	}
	for i := range in.Profiles {
		percentage(fmt.Sprintf("profiles[%d].percentageOfNodesToScore", i), in.Profiles[i].PercentageOfNodesToScore)
		p, err := convertProfile(&in.Profiles[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("profiles[%d]: %w", i, err))
		}
		c.Profiles = append(c.Profiles, p)
	}
	return c, warnings, errors.Join(errs...)
}

// leaderElection copies the fields that the file sets.
func leaderElection(c *componentconfig.LeaderElectionConfiguration, in *componentconfigv1.LeaderElectionConfiguration) {
	c.LeaderElect = ptr.Deref(in.LeaderElect, c.LeaderElect)
	c.LeaseDuration = cmp.Or(in.LeaseDuration, c.LeaseDuration)
	c.RenewDeadline = cmp.Or(in.RenewDeadline, c.RenewDeadline)
	c.RetryPeriod = cmp.Or(in.RetryPeriod, c.RetryPeriod)
	c.ResourceLock = cmp.Or(in.ResourceLock, c.ResourceLock)
	c.ResourceName = cmp.Or(in.ResourceName, c.ResourceName)
	c.ResourceNamespace = cmp.Or(in.ResourceNamespace, c.ResourceNamespace)
}

func convertProfile(p *configv1.KubeSchedulerProfile) (ProfileConfig, error) {
	out := ProfileConfig{
		SchedulerName: ptr.Deref(p.SchedulerName, v1.DefaultSchedulerName), PercentageOfNodesToScore: p.PercentageOfNodesToScore,
		Plugins: p.Plugins, Args: map[string]runtime.Object{},
	}
	for i, pc := range p.PluginConfig {
		if _, ok := out.Args[pc.Name]; ok {
			return out, fmt.Errorf("pluginConfig[%d]: Duplicate value: %q", i, pc.Name)
		}
		out.Args[pc.Name] = pc.Args.Object
		if pc.Args.Object == nil {
			// A plugin that is not ours knows how to read it.
			out.Args[pc.Name] = &runtime.Unknown{Raw: pc.Args.Raw, ContentType: runtime.ContentTypeJSON}
		}
	}
	if p.Plugins == nil {
		return out, nil
	}
	var errs []error
	for point, set := range framework.Sets(p.Plugins) {
		for _, e := range set.Enabled {
			if e.Weight != nil && *e.Weight < 0 {
				errs = append(errs, fmt.Errorf("plugins.%s: %s: weight: Invalid value: %d: must not be negative", point, e.Name, *e.Weight))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return out, errors.Join(errs...)
}

// profiles makes the plugins of every configured scheduler name. All must sort the one queue alike.
func (c Config) profiles(ctx context.Context, shared *framework.Shared) (map[string]*framework.Profile, error) {
	if err := (gated.Features{PodGroups: c.PodGroups, Topology: c.Topology}).Check(); err != nil {
		return nil, err
	}
	registry := plugins.Registry()
	for name, gate := range map[string]struct {
		on   bool
		name string
	}{
		plugins.GangScheduling:             {c.PodGroups, gated.GenericWorkload},
		plugins.TopologyPlacementGenerator: {c.Topology, gated.TopologyAwareWorkloadScheduling},
		plugins.PodGroupPodsCount:          {c.Topology, gated.TopologyAwareWorkloadScheduling},
	} {
		if !gate.on {
			registry[name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
				return nil, fmt.Errorf("it takes the feature gate %[1]s: --feature-gates=%[1]s=true", gate.name)
			}
		}
	}
	for name, f := range c.Registry {
		if _, ok := registry[name]; ok {
			return nil, fmt.Errorf("a scheduler plugin with the name %q exists", name)
		}
		registry[name] = f
	}
	out := map[string]*framework.Profile{}
	sorter := ""
	for _, pc := range c.Profiles {
		if pc.SchedulerName == "" {
			return nil, errors.New("a scheduler profile has no schedulerName")
		}
		if _, ok := out[pc.SchedulerName]; ok {
			return nil, fmt.Errorf("scheduler profile %s is listed twice", pc.SchedulerName)
		}
		if err := c.checkPoints(pc); err != nil {
			return nil, err
		}
		args := ignore(pc.Args, shared.Extenders)
		p, err := framework.NewProfile(ctx, pc.SchedulerName, registry, framework.Merge(plugins.Default(c.Gates), pc.Plugins), args, shared)
		if err != nil {
			return nil, err
		}
		p.PercentageOfNodesToScore = pc.PercentageOfNodesToScore
		name := p.QueueSort().Name()
		if sorter != "" && name != sorter {
			return nil, fmt.Errorf("scheduler profile %s sorts the queue by %s, and another profile by %s: there is only one queue", pc.SchedulerName, name, sorter)
		}
		sorter = name
		out[pc.SchedulerName] = p
	}
	if len(out) == 0 {
		return nil, errors.New("the scheduler has no profile")
	}
	return out, nil
}

// checkPoints returns an error if a profile has plugins at an extension point whose gate is closed.
func (c Config) checkPoints(p ProfileConfig) error {
	if p.Plugins == nil {
		return nil
	}
	for _, point := range []struct {
		name string
		set  configv1.PluginSet
		on   bool
		gate string
	}{
		{"podGroupPostFilter", p.Plugins.PodGroupPostFilter, c.PodGroups, gated.GenericWorkload},
		{"placementGenerate", p.Plugins.PlacementGenerate, c.Topology, gated.TopologyAwareWorkloadScheduling},
		{"placementScore", p.Plugins.PlacementScore, c.Topology, gated.TopologyAwareWorkloadScheduling},
	} {
		if len(point.set.Enabled) > 0 && !point.on {
			return fmt.Errorf("scheduler profile %s: plugins.%s takes the feature gate %[3]s: --feature-gates=%[3]s=true",
				p.SchedulerName, point.name, point.gate)
		}
	}
	return nil
}

// ignore leaves the resources to extenders of which these say that they see to them.
func ignore(args map[string]runtime.Object, extenders []fwk.Extender) map[string]runtime.Object {
	const plugin = "NodeResourcesFit"
	var ignored []string
	for _, e := range extenders {
		if h, ok := e.(*extender.HTTP); ok {
			ignored = append(ignored, h.Ignored()...)
		}
	}
	if len(ignored) == 0 {
		return args
	}
	fit := &configv1.NodeResourcesFitArgs{}
	if own, ok := args[plugin].(*configv1.NodeResourcesFitArgs); ok {
		fit = own.DeepCopy()
	}
	fit.IgnoredResources = append(fit.IgnoredResources, ignored...)
	args = maps.Clone(args)
	if args == nil {
		args = map[string]runtime.Object{}
	}
	args[plugin] = fit
	return args
}
