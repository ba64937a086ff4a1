package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"
	componentconfigv1 "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/safepath"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
)

// Config is the part of KubeSchedulerConfiguration that this scheduler supports.
type Config struct {
	Profiles       []ProfileConfig
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	// Only for a scheduler that runs as a process of its own:
	Kubeconfig     string
	LeaderElection componentconfig.LeaderElectionConfiguration
}

// ProfileConfig configures the profile of one schedulerName.
type ProfileConfig struct {
	SchedulerName string
	Disabled      []string         // plugins to leave out; "*" means all
	Enabled       []string         // plugins to add again, in this order
	Weights       map[string]int64 // of scores, by plugin
}

// DefaultConfig returns one profile, default-scheduler, with the default plugins.
func DefaultConfig() Config {
	return Config{
		Profiles: []ProfileConfig{{SchedulerName: v1.DefaultSchedulerName}},
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
	var in configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(data, &in); err != nil {
		return Config{}, nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	if in.Kind != "KubeSchedulerConfiguration" || in.APIVersion != configv1.SchemeGroupVersion.String() {
		return Config{}, nil, fmt.Errorf("scheduler configuration %s: it is %s %s, want %s KubeSchedulerConfiguration", path, in.APIVersion, in.Kind, configv1.SchemeGroupVersion)
	}
	return convert(path, &in)
}

func convert(path string, in *configv1.KubeSchedulerConfiguration) (Config, []string, error) {
	var warnings []string
	warn := func(set bool, field string) {
		if set {
			warnings = append(warnings, fmt.Sprintf("scheduler configuration %s: %s has no effect", path, field))
		}
	}
	warn(len(in.Extenders) > 0, "extenders")
	warn(in.PercentageOfNodesToScore != nil, "percentageOfNodesToScore")
	warn(in.Parallelism != nil, "parallelism")
	c := DefaultConfig()
	c.Kubeconfig = in.ClientConnection.Kubeconfig
	leaderElection(&c.LeaderElection, &in.LeaderElection)
	if s := in.PodInitialBackoffSeconds; s != nil {
		c.InitialBackoff = time.Duration(*s) * time.Second
	}
	if s := in.PodMaxBackoffSeconds; s != nil {
		c.MaxBackoff = time.Duration(*s) * time.Second
	}
	if c.MaxBackoff > 0 && c.MaxBackoff < c.InitialBackoff {
		return c, nil, fmt.Errorf("scheduler configuration %s: podMaxBackoffSeconds must not be less than podInitialBackoffSeconds", path)
	}
	if len(in.Profiles) > 0 {
		c.Profiles = nil
	}
	for i := range in.Profiles {
		p := &in.Profiles[i]
		warn(len(p.PluginConfig) > 0, fmt.Sprintf("profiles[%d].pluginConfig", i))
		c.Profiles = append(c.Profiles, convertProfile(p))
	}
	return c, warnings, nil
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

func convertProfile(p *configv1.KubeSchedulerProfile) ProfileConfig {
	out := ProfileConfig{SchedulerName: v1.DefaultSchedulerName, Weights: map[string]int64{}}
	if p.SchedulerName != nil {
		out.SchedulerName = *p.SchedulerName
	}
	if p.Plugins == nil {
		return out
	}
	for _, set := range []configv1.PluginSet{p.Plugins.MultiPoint, p.Plugins.Filter, p.Plugins.Score} {
		for _, d := range set.Disabled {
			out.Disabled = append(out.Disabled, d.Name)
		}
		for _, e := range set.Enabled {
			out.Enabled = append(out.Enabled, e.Name)
			if e.Weight != nil {
				out.Weights[e.Name] = int64(*e.Weight)
			}
		}
	}
	return out
}

// profiles builds the plugins of every configured scheduler name.
func (c Config) profiles(client clientset.Interface) (map[string]*framework.Profile, error) {
	out := map[string]*framework.Profile{}
	for _, pc := range c.Profiles {
		if _, ok := out[pc.SchedulerName]; ok {
			return nil, fmt.Errorf("scheduler profile %s is listed twice", pc.SchedulerName)
		}
		chosen, err := choose(plugins.Default(client), pc)
		if err != nil {
			return nil, err
		}
		if out[pc.SchedulerName], err = framework.NewProfile(pc.SchedulerName, chosen); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the scheduler has no profile")
	}
	return out, nil
}

func choose(all []framework.WeightedPlugin, pc ProfileConfig) ([]framework.WeightedPlugin, error) {
	byName := map[string]framework.WeightedPlugin{}
	for _, w := range all {
		byName[w.Plugin.Name()] = w
	}
	for _, name := range slices.Concat(pc.Enabled, pc.Disabled) {
		if _, ok := byName[name]; !ok && name != "*" {
			return nil, fmt.Errorf("scheduler profile %s: unknown plugin %q", pc.SchedulerName, name)
		}
	}
	// The queue needs one order and a binding one writer, whatever else is disabled.
	needed := []string{plugins.PrioritySort{}.Name(), plugins.DefaultBinder{}.Name()}
	var out []framework.WeightedPlugin
	for _, w := range all {
		name := w.Plugin.Name()
		off := slices.Contains(pc.Disabled, "*") || slices.Contains(pc.Disabled, name)
		if off && !slices.Contains(pc.Enabled, name) && !slices.Contains(needed, name) {
			continue
		}
		if weight, ok := pc.Weights[name]; ok {
			w.Weight = weight
		}
		out = append(out, w)
	}
	return out, nil
}
